"""The training log: one JSON line per interval, the same after any number of kills; and the same for TensorBoard.

Lines with a loss come from the training itself. Lines with a "watch" are snapshots: the accuracies of some archs at
that step, those of the doctor's archs under "subnets". A line with a "rollback" says that the training went back to its
step.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.utils.files import complete_lines, parse_json, write_text
from nasformer.utils.schema import from_json


@dataclass(frozen=True)
class LogLine:
    """A line of the log: the training at a step, with the mean loss since the line before and the learning rate."""

    step: int
    epoch: float | None = None
    loss: float | None = None
    lr: float | None = None
    watch: dict[str, float] | None = None
    subnets: dict[str, float] | None = None
    rollback: dict[str, int | str] | None = None


class TrainLog:
    """The log of a training, to append lines to; on resume, lines behind the checkpoint are dropped: they come again.

    That of a rollback belongs to the step after it, and is dropped where that step comes again.
    """

    def __init__(self, path: Path | None, start_step: int, tensorboard: bool = False) -> None:
        self.path = path
        self.events = TensorBoardEvents(path.parent, start_step) if path and tensorboard else None
        if path is not None:
            kept = [line for line in self.read(path) if line["step"] < start_step + ("rollback" not in line)]
            write_text(path, "".join(json.dumps(line) + "\n" for line in kept))

    def append(self, line: dict[str, Any]) -> None:
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.events:
            self.events.append(line)

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """The whole lines of a log, which are as `LogLine` says; a last one that a kill cut short does not count."""
        lines = [parse_json(line, path) for line in complete_lines(path)]
        for number, line in enumerate(lines, 1):
            from_json(LogLine, line, f"{path}, line {number}")
        return lines

    @staticmethod
    def last_loss(path: Path) -> float:
        """The last loss in the log; NaN without one."""
        losses = [line["loss"] for line in TrainLog.read(path) if line.get("loss") is not None]
        return losses[-1] if losses else math.nan


def is_snapshot(line: dict[str, Any]) -> bool:
    return "watch" in line


def is_rollback(line: dict[str, Any]) -> bool:
    return "rollback" in line


def read_snapshots(path: Path) -> list[dict[str, Any]]:
    """The snapshots of a supernet during its training: lines with step, epoch and, by name, accuracies."""
    return [line for line in TrainLog.read(path) if is_snapshot(line)]


EVENTS_FILE = "events.out.tfevents.0000000000.nasformer"


class TensorBoardEvents:
    """The numbers of each line as scalars by step, in one file in FOLDER/tensorboard that only ever grows.

    No thread and nothing to close: a line is in the file when `append` returns. A training that goes on from an earlier
    step says so, and TensorBoard drops what was behind that step.

    Args:
        start_step: The step from which the training goes on; later events of the file do not count any more.
    """

    def __init__(self, folder: Path, start_step: int = 0) -> None:
        check_installed()
        self.path, self.start_step, self.fresh = folder / "tensorboard" / EVENTS_FILE, start_step, True

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
        """The first event of a new file; in an old one the event that makes void the steps that come again."""
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
