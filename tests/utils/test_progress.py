from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nasformer.utils import progress as module
from nasformer.utils.progress import progress, run_stages


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


def test_work_of_an_earlier_process_does_not_count_for_the_time(capsys: Any, clock: Clock) -> None:
    with progress("train", 100) as report:
        for done in range(50, 61):
            report(done)
            clock.now += 1
    assert capsys.readouterr().err == "train: 58/100, 8 s, about 42 s left  \n"


def test_a_stage_tells_how_long_the_whole_run_takes(capsys: Any, clock: Clock) -> None:
    with run_stages({"train": 100.0, "search": 50.0, "finish": 150.0}):
        for label in ("train", "search", "other", "finish"):
            with progress(label, 20) as report:
                for done in range(1, 11):
                    clock.now += 1
                    report(done)
    with progress("train", 20) as report:
        clock.now += 10
        report(1)
    assert capsys.readouterr().err.splitlines() == [
        "train: 8/20, 8 s, about 12 s left, 52 s of the run  ",
        "search: 8/20, 8 s, about 12 s left, 72 s of the run  ",
        "other: 8/20, 8 s, about 12 s left  ",
        "finish: 8/20, 8 s, about 12 s left  ",
        "train: 1/20, 10 s, about 3 min left  ",
    ]


class Display:
    """A display of a notebook that remembers what it shows."""

    def __init__(self, html: Any) -> None:
        self.shown = [html.data]

    def update(self, html: Any) -> None:
        self.shown.append(html.data)


def test_a_notebook_gets_one_bar_that_moves(monkeypatch: Any, capsys: Any, clock: Clock) -> None:
    displays: list[Display] = []
    kernel = SimpleNamespace(kernel=object())
    shell = SimpleNamespace(get_ipython=lambda: kernel)
    drawing = SimpleNamespace(HTML=lambda text: SimpleNamespace(data=text))
    drawing.display = lambda html, display_id: displays.append(Display(html)) or displays[-1]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", drawing)
    with progress("a < b", 4) as report:
        for done in range(1, 5):
            clock.now += 0.4
            report(done, "best 50 %")
    (bar,) = displays
    assert len(bar.shown) == 3  # not more often than twice a second, and at the end
    assert bar.shown[-1].startswith('<div>a &lt; b <progress value="4" max="4"></progress> 4/4, 2 s, about 0 s left')
    assert capsys.readouterr() == ("", "")
    kernel.kernel = None  # IPython in a terminal
    with progress("train", 1) as report:
        report(1)
    assert len(displays) == 1


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
