"""Processes to kill: they are started, watched until something is on the disk, and killed as nothing can prevent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# One thread each, so that results do not depend on the number of cores, and the copy of the package under test.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
PATIENCE = 300.0
HOLD = """
import sys, pathlib, nasformer.utils.files as f
with f.locked(pathlib.Path(sys.argv[1])): print('held'); input()
"""


def nasformer(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "nasformer.cli.main", *map(str, words)]


def finish(command: list[str]) -> float:
    """Runs a command to its good end; returns how long that took."""
    start = time.monotonic()
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - start


def kill(command: list[str], ready: Callable[[], bool], delay: float) -> bool:
    """Starts a command and kills it so long after it is ready; False if it had ended by then."""
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + PATIENCE
        while not ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(delay)
        landed = process.poll() is None
        process.kill()
    return landed


@contextmanager
def holding(lock: Path) -> Iterator[None]:
    """Another process holds the lock until it is killed."""
    command = [sys.executable, "-u", "-c", HOLD, str(lock)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield
        other.kill()
