"""The training log: one JSON line per interval, the same after any number of kills.

Lines with a loss are of the training itself; lines with a "watch" hold the accuracies of some archs at that step, those
of the doctor's under "subnets"; one with a "rollback" says that the training came back to that step, and why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.files import write_text
from nasformer.train.events import Events


class TrainLog:
    """Appends lines; on resume, lines behind the checkpoint are dropped, since their steps come again.

    That of a rollback belongs to the step after it, and is dropped where that step comes again.
    """

    def __init__(self, path: Path | None, start_step: int, tensorboard: bool = False) -> None:
        self.path = path
        self.events = Events(path.parent, start_step) if path and tensorboard else None
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
        """The whole lines of a log; a last one that a kill cut short does not count."""
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}); restore it or start in another folder") from None


def is_watch(line: Any) -> bool:
    return isinstance(line, dict) and "watch" in line


def is_rollback(line: Any) -> bool:
    return isinstance(line, dict) and "rollback" in line


def watched(path: Path) -> list[dict[str, Any]]:
    """The looks at a supernet's archs during its training: lines with step, epoch and, by name, accuracies."""
    return [line for line in TrainLog.read(path) if is_watch(line)]
