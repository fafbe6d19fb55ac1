from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from nasformer.utils import progress as module
from nasformer.utils.progress import progress


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: Any) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_plain_lines_come_every_so_often_and_at_the_end(capsys: Any, clock: Clock) -> None:
    with progress("train", 100) as report:
        for done in range(1, 101):
            clock.now += 1
            report(done, f"loss {done / 100}")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 13
    assert lines[0] == "train: 8/100, 8 s, about 92 s left  loss 0.08"
    assert lines[-1] == "train: 100/100, 100 s, about 0 s left  loss 1.0"


def test_quiet_says_nothing(capsys: Any, clock: Clock) -> None:
    with progress("train", 2, quiet=True) as report:
        clock.now = 1e6
        report(2, "done")
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: Any) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    with progress("search", 4) as report:
        report(3, "best 50 %")
    assert "search" in terminal.getvalue()
    assert "3/4" in terminal.getvalue()
    assert "best 50 %" in terminal.getvalue()


@pytest.mark.parametrize("output", [io.StringIO, Terminal])
def test_errors_pass_through(monkeypatch: Any, output: Any) -> None:
    monkeypatch.setattr(sys, "stderr", output())
    with pytest.raises(KeyboardInterrupt), progress("train", 4):
        raise KeyboardInterrupt
