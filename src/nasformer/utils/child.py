"""Work in a process of its own: a function goes to a fresh Python as a pickle, messages and its result come back.

Unlike multiprocessing's, such a process never runs the user's script again, whatever that looks like. It ends with the
process that started it: a training in it first finishes its step and writes a checkpoint.
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
from dataclasses import dataclass
from typing import Any

from nasformer.utils.plugins import load_plugins, loaded_plugins

Send = Callable[[Any], None]
Work = Callable[[Send], Any]
"""What a process is for: it may send messages, and returns its result."""
PATIENCE = 30.0
"""Seconds that a process has to write a checkpoint, once it is to end."""


@dataclass(frozen=True)
class Ended:
    """The last message of a process: its result, or what was raised and where (`error` is None where it was killed)."""

    result: Any = None
    failed: bool = False
    error: BaseException | None = None
    traceback: str = ""


class Child:
    """A process that works.

    Args:
        work: To be pickled, with all that it needs.
        on_message: Called with every message, the last of them `Ended`; in a thread.
        quiet: Whether what it writes to standard error is lost.
    """

    def __init__(self, work: Work, on_message: Send | None = None, quiet: bool = False) -> None:
        self.ended: Ended | None = None
        self.on_message = on_message or (lambda message: None)
        setting = pickle.dumps((list(sys.path), loaded_plugins()))
        content = pickle.dumps(work)
        command = [sys.executable, "-c", "from nasformer.utils.child import main; main()"]
        errors = subprocess.DEVNULL if quiet else None
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        threading.Thread(target=self._write, args=(setting, content), daemon=True).start()
        threading.Thread(target=self._read, daemon=True).start()

    def _write(self, *contents: bytes) -> None:
        assert self.process.stdin
        try:
            for content in contents:
                self.process.stdin.write(len(content).to_bytes(8, "big") + content)
            self.process.stdin.flush()
        except OSError:  # it has died, which reading tells
            pass

    def _read(self) -> None:
        assert self.process.stdout
        while self.ended is None:
            try:
                message = pickle.load(self.process.stdout)
            except Exception as error:  # the end of the stream, or a result that cannot be read here
                code = self.process.wait() if isinstance(error, EOFError) else 0
                message = Ended(None, True, None, f"the process ended with {code}" if code else repr(error))
            if isinstance(message, Ended):
                self.ended = message
            self.on_message(message)

    def close(self) -> None:
        """Ends the process if it still works: a training in it writes a checkpoint first."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()


def main() -> None:
    """The process itself: reads what to do from standard input, and writes messages to standard output."""
    answers, source = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # what is printed must not mix with messages
    lock = threading.Lock()

    def send(message: Any) -> None:
        content = pickle.dumps(message)
        with lock:
            answers.write(content)
            answers.flush()

    try:
        sys.path[:], plugins = pickle.loads(read_part(source))
        load_plugins(plugins)
        work: Work = pickle.loads(read_part(source))
        threading.Thread(target=end_with_parent, args=(source,), daemon=True).start()
        ended = Ended(work(send))
    except BaseException as error:
        ended = Ended(None, True, error, traceback.format_exc())
    try:
        send(ended)
    except Exception:  # an error that cannot be pickled
        send(Ended(None, True, None, ended.traceback or "the result cannot be pickled"))


def read_part(source: Any) -> bytes:
    content: bytes = source.read(int.from_bytes(source.read(8), "big"))
    return content


def end_with_parent(source: Any) -> None:
    """Waits for the end of standard input, which comes when the parent does, however that ends."""
    source.read()
    os.kill(os.getpid(), signal.SIGTERM)
