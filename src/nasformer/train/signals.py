"""Stopping a training by SIGINT (Ctrl-C) or SIGTERM: it finishes its step and writes a checkpoint first."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class TrainingStopped(KeyboardInterrupt):
    """A signal has stopped a training.

    Args:
        step, total: After which step, of how many.
        saved: Whether there is a checkpoint of this step.
        signal_number: Which signal it was; None where another process got it.
    """

    def __init__(self, step: int, total: int, saved: bool, signal_number: int | None = None) -> None:
        self.step, self.total, self.saved, self.signal_number = step, total, saved, signal_number
        super().__init__(f"at step {step} of {total}" + ("" if saved else ", which was not saved"))


class StopSignals:
    """While this context lasts, a first signal is a request to stop, and a second one raises KeyboardInterrupt.

    Outside of the main thread, where Python allows no handlers, it does nothing; nor to signals that are ignored.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise KeyboardInterrupt
        self.requested = number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
