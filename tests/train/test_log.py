from __future__ import annotations

import json
from pathlib import Path

import pytest

from nasformer.errors import UserError
from nasformer.train.log import TrainLog, read_snapshots


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_lines_are_appended_and_read(tmp_path: Path) -> None:
    log = TrainLog(tmp_path / "new" / "log.jsonl", 0)
    lines = [{"step": 2, "loss": 0.1}, {"step": 4, "loss": 1e-30}]
    for line in lines:
        log.append(line)
    assert TrainLog.read(tmp_path / "new" / "log.jsonl") == lines


def test_lines_behind_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", "".join(json.dumps({"step": step}) + "\n" for step in (2, 4, 6, 8)))
    TrainLog(path, 4).append({"step": 6, "again": True})
    assert TrainLog.read(path) == [{"step": 2}, {"step": 4}, {"step": 6, "again": True}]


def test_a_line_that_a_kill_cut_short_does_not_count(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", '{"step": 2}\n{"step": 4, "lo')
    assert TrainLog.read(path) == [{"step": 2}]
    TrainLog(path, 4).append({"step": 6})
    assert path.read_text() == '{"step": 2}\n{"step": 6}\n'


def test_no_path_writes_nothing() -> None:
    TrainLog(None, 0).append({"step": 2})


def test_a_damaged_line_is_said_to_be_one(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", 'what?\n{"step": 4}\n')
    with pytest.raises(UserError, match=r"log\.jsonl is damaged"):
        TrainLog(path, 4)


def test_looks_at_archs_are_told_from_the_lines_of_the_training(tmp_path: Path) -> None:
    look = {"step": 4, "epoch": 0.5, "watch": {"conv": 0.5}}
    path = write(tmp_path / "log.jsonl", "".join(json.dumps(x) + "\n" for x in ({"step": 4, "loss": 1.0}, look)))
    assert read_snapshots(path) == [look]
    assert read_snapshots(tmp_path / "none.jsonl") == []
