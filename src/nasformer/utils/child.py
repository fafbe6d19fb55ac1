"""Child processes: a pickled function runs in a fresh Python, its messages and its result come back.

Unlike with multiprocessing, a child never runs the user's script again. It has a session of its own, so that Ctrl-C
reaches it through its parent alone: asked to stop, a training finishes its step and writes a checkpoint. When the
parent is killed, it ends at once.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nasformer.utils.plugins import load_plugins, loaded_plugins

Send = Callable[[Any], None]
ChildWork = Callable[[Send], Any]
"""The function of a child process: it may send messages, and returns its result."""
STOP_SECONDS = 60.0
"""Seconds in which a process that is asked to stop can write a checkpoint."""
STOP = b"s"


@dataclass(frozen=True)
class Ended:
    """The last message of a process: its result, or what was raised and where (`error` is None if that is lost)."""

    result: Any = None
    failed: bool = False
    error: BaseException | None = None
    traceback: str = ""


class Child:
    """A child process and the function that runs in it.

    Args:
        work: To be pickled, with all that it needs.
        on_message: Called with every message, the last of them `Ended`; in a thread.
        quiet: Whether to discard what it writes to standard error.
    """

    def __init__(self, work: ChildWork, on_message: Send | None = None, quiet: bool = False) -> None:
        self.ended: Ended | None = None
        self.on_message = on_message or (lambda message: None)
        parts = [pickle.dumps((list(sys.path), loaded_plugins())), pickle.dumps(work)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from nasformer.utils.child import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            start_new_session=True,
        )
        threading.Thread(target=self._write, args=parts, daemon=True).start()
        threading.Thread(target=self._read, daemon=True).start()

    def _write(self, *parts: bytes) -> None:
        assert self.process.stdin
        with suppress(OSError, ValueError):  # it has died or was stopped, which reading tells
            for part in parts:
                self.process.stdin.write(len(part).to_bytes(8, "big") + part)
                self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout
        while self.ended is None:
            try:
                message = pickle.load(self.process.stdout)
            except EOFError:
                message = Ended(None, True, None, f"the process ended with status {self.process.wait()}")
            except Exception as error:  # a result that cannot be read here
                message = Ended(None, True, None, repr(error))
            if isinstance(message, Ended):
                self.ended = message
            self.on_message(message)

    def stop(self) -> None:
        """Asks the process to end; a training in it writes a checkpoint first."""
        assert self.process.stdin
        with suppress(OSError, ValueError):
            self.process.stdin.write(STOP)
            self.process.stdin.flush()

    def close(self) -> None:
        """Ends the process, if it still works, and waits for that."""
        self.stop()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()


def main() -> None:
    """Main function of the child: reads its work from standard input, writes messages to standard output."""
    answers, lock = os.fdopen(os.dup(1), "wb"), threading.Lock()
    os.dup2(2, 1)  # what is printed must not mix with messages

    def send(message: Any) -> None:
        content = pickle.dumps(message)
        with lock:
            answers.write(content)
            answers.flush()

    try:
        sys.path[:], plugins = pickle.loads(read_part())
        content = read_part()
        threading.Thread(target=watch_parent, daemon=True).start()
        load_plugins(plugins)
        work: ChildWork = pickle.loads(content)
        ended = Ended(work(send))
    except BaseException as error:
        ended = Ended(None, True, error, traceback.format_exc())
    try:
        send(ended)
    except Exception:  # an error or a result that cannot be pickled
        send(Ended(None, True, None, ended.traceback or "the result cannot be pickled"))


def read_part() -> bytes:
    return read_exactly(int.from_bytes(read_exactly(8), "big"))


def read_exactly(count: int) -> bytes:
    """Reads `count` bytes from standard input and no more, since a stop byte may follow."""
    content = bytearray()
    while len(content) < count:
        part = os.read(0, min(count - len(content), 2**20))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


def watch_parent() -> None:
    """Waits for the stop byte; ends the process where the parent has died."""
    if os.read(0, 1) == STOP:
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        os._exit(1)
