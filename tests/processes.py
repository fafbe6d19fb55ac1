"""Processes of their own for tests, forked from a server that has imported everything once: so they start at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["nasformer.cli.main", "nasformer.cli.commands", "timm", "sklearn.datasets", "scipy"])
PATIENCE = 300.0


@contextmanager
def running(target: Callable[..., None], *arguments: Any) -> Iterator[ForkServerProcess]:
    """Calls a function of a module in a process, which is killed in the end, if it still runs."""
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def wait_until(ready: Callable[[], bool], process: ForkServerProcess) -> None:
    """Waits for something that a process does; no longer than it lives."""
    deadline = time.monotonic() + PATIENCE
    while not ready() and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.002)


def run_command(words: list[str]) -> None:
    """The command line, with one thread, as in the tests themselves."""
    import torch

    from nasformer.cli.main import main

    torch.set_num_threads(1)
    sys.exit(main(words))


def kill_command(words: list[str], ready: Callable[[], bool], delay: float) -> bool:
    """Starts a command and kills it so long after it is ready; False if it had ended by then."""
    with running(run_command, words) as process:
        wait_until(ready, process)
        time.sleep(delay)
        return process.is_alive()


def in_two_processes(words: list[str], folder: Path) -> Any:
    """What a command prints as JSON in two processes that work together, as torchrun starts them; one must print it."""
    port = free_port()
    outputs = [folder / f"output-{rank}.txt" for rank in range(2)]
    with (
        running(run_rank, 0, port, [*words, "--json"], outputs[0]) as first,
        running(run_rank, 1, port, [*words, "--json"], outputs[1]) as second,
    ):
        for process in (first, second):
            process.join(PATIENCE)
        assert (first.exitcode, second.exitcode) == (0, 0)
    return json.loads("".join(path.read_text() for path in outputs))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def join_two(rank: int, port: int) -> None:
    """Makes this process one of two, as torchrun does."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def run_rank(rank: int, port: int, words: list[str], output: Path) -> None:
    join_two(rank, port)
    with open(output, "w") as sys.stdout:
        run_command(words)
