"""The training log for TensorBoard as well: each line's numbers as scalars, in one file that only ever grows.

No thread and nothing to close: a line is in the file when `append` returns. A training that goes on from an earlier
step says so, and TensorBoard drops what was behind that step.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from nasformer.errors import UserError

FILE = "events.out.tfevents.0000000000.nasformer"


class Events:
    """Scalars by step in FOLDER/tensorboard.

    Args:
        start_step: Where the training goes on from; what the file has behind it does not count any more.
    """

    def __init__(self, folder: Path, start_step: int = 0) -> None:
        check_installed()
        self.path, self.start_step, self.fresh = folder / "tensorboard" / FILE, start_step, True

    def append(self, line: dict[str, Any]) -> None:
        """Writes the numbers of a line of the log."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(line).items()]
        if values:
            events = [Event(wall_time=time.time(), step=line["step"], summary=Summary(value=values))]
            self._write(self._opening() + events if self.fresh else events)
            self.fresh = False

    def _opening(self) -> list[Any]:
        """What the file begins with, or what makes void the steps that come again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        if not self.path.exists():
            return [Event(wall_time=time.time(), file_version="brain.Event:2")]
        start = SessionLog(status=SessionLog.START)
        return [Event(wall_time=time.time(), step=self.start_step + 1, session_log=start)]

    def _write(self, events: list[Any]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            writer = RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())


def check_installed() -> None:
    try:
        import tensorboard.compat.proto.event_pb2  # noqa: F401
    except ImportError:
        raise UserError("tensorboard=true needs the package tensorboard; install it: nasformer[tensorboard]") from None


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line by tag.

    >>> scalars({"step": 20, "epoch": 2.0, "loss": 1.5, "watch": {"largest": 0.9}})
    {'train/epoch': 2.0, 'train/loss': 1.5, 'watch/largest': 0.9}
    """
    groups = {"train": {name: value for name, value in line.items() if name != "step"}}
    groups |= {name: value for name, value in line.items() if isinstance(value, dict)}
    return {
        f"{group}/{name}": float(value)
        for group, values in groups.items()
        for name, value in values.items()
        if isinstance(value, int | float) and group != "rollback"
    }
