"""Work in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import kill
from nasformer.utils.child import Child, Ended, Send

# Functions of the standard library and of light modules, so that the processes start quickly.


def until(condition: Callable[[], Any], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def call(function: Callable[..., Any], *values: Any) -> tuple[Ended, list[Any]]:
    """What a function, called with the way to send messages, ends with in another process; and its messages."""
    messages: list[Any] = []
    child = Child(partial(function, *values), messages.append)
    assert until(lambda: child.ended)
    assert child.ended
    return child.ended, messages


def test_results_errors_and_messages_come_back() -> None:
    ended, messages = call(_sum, 3, 4)
    assert ended == Ended(7)
    assert messages == ["adding", ended]
    ended, _ = call(_fail, 5)
    assert ended.failed
    assert isinstance(ended.error, ValueError)
    assert "no 5" in ended.traceback
    ended, _ = call(_die)
    assert (ended.failed, ended.error) == (True, None)
    assert "status 3" in ended.traceback


def test_it_stops_when_asked_to_and_may_clean_up_first(tmp_path: Path) -> None:
    child = Child(partial(_wait, tmp_path / "started", tmp_path / "stopped"))
    assert until((tmp_path / "started").exists)
    child.close()
    assert (tmp_path / "stopped").exists()


PARENT = """
import sys, pathlib, time
from functools import partial
from test_child import _wait, Child
folder = pathlib.Path(sys.argv[1])
child = Child(partial(_wait, folder / "started", folder / "stopped"))
time.sleep(60)
"""


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    environment = {**kill.ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env=environment) as parent:
        assert until((tmp_path / "started").exists)
        parent.kill()
    process = int((tmp_path / "started").read_text())
    assert until(lambda: not Path(f"/proc/{process}").exists() or "Z" in Path(f"/proc/{process}/stat").read_text())
    assert not (tmp_path / "stopped").exists()  # at once, as if it had been killed too


def _sum(first: int, second: int, send: Send) -> int:
    send("adding")
    print("this must not mix with messages")
    return first + second


def _fail(number: int, send: Send) -> None:
    raise ValueError(f"no {number}")


def _die(send: Send) -> None:
    os._exit(3)


def _wait(started: Path, stopped: Path, send: Send) -> None:
    def stop(*signal: Any) -> None:
        stopped.touch()
        sys.exit()

    signal.signal(signal.SIGTERM, stop)
    started.with_suffix(".draft").write_text(str(os.getpid()))
    started.with_suffix(".draft").rename(started)
    time.sleep(60)
