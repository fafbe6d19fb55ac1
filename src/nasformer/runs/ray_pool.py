"""A pool of workers on a Ray cluster that does its tasks whatever happens to the workers.

The job (supernet, images ...) goes into the object store once; every worker opens it once and keeps it. A worker has
one task at a time, so that it is known whose fault it is when it dies. What can go wrong, and what then:

- a task raises, hangs beyond its time, or takes its worker with it: it is tried again; after three times it has failed;
- a worker is killed or its node is lost: its task goes to another one, and a new worker starts where there is room;
  the loss of a node is not the fault of the task and does not count, unless the task has seen ten of them;
- no node is left: the pool waits for one;
- this process is killed: workers end with it, and the journal says where the same command goes on.

Results are given in the order of the tasks, so nothing depends on who was fast.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from nasformer.errors import UserError
from nasformer.runs.options import ExecutorOptions
from nasformer.search.run import Failed
from nasformer.utils.files import append_json
from nasformer.utils.plugins import load_plugins, loaded_plugins
from nasformer.utils.progress import say

ATTEMPTS, LOSSES = 3, 10
DEATHS = 30  # workers in a row that died before they were ready, as nodes come and go
POLL = 1.0  # seconds between two looks at deadlines and at the size of the cluster
PATIENCE = 60.0  # seconds without a worker after which it is said what is missing
EVENTS = "workers.jsonl"

Work = Callable[[Any], Any]


class Job(Protocol):
    """Work of a pool: opened once in each worker, which then does tasks one after the other."""

    def open(self, device: str) -> Work: ...


def check_ray(options: ExecutorOptions) -> None:
    """Refuses early what a pool would refuse after a long training."""
    if options.executor == "ray" and find_spec("ray") is None:
        raise UserError("--executor ray needs Ray: pip install 'nasformer[ray]', or leave --executor out")


class Host:
    """The process of a worker: an actor that keeps an opened job."""

    def open(self, folder: str, modules: Sequence[str], threads: int, device: str, stored: Sequence[Any]) -> str:
        """Opens the job (whose place in the store comes in a list, to be read after the modules); the node's id."""
        import ray
        import torch

        if Path(folder).is_dir():  # paths and modules of the user's are named from there
            os.chdir(folder)
        torch.set_num_threads(threads)
        load_plugins(modules)
        job: Job = ray.get(stored[0])
        self.work = job.open(device)
        return ray.get_runtime_context().get_node_id()

    def do(self, task: Any) -> Any:
        return self.work(task)


@dataclass
class Worker:
    """A worker as the pool sees it: `answer` is the future of its last call, None where it is idle."""

    actor: Any
    answer: Any
    node: str = ""  # empty until it has opened the job
    task: int | None = None
    deadline: float = math.inf


@dataclass
class Batch:
    """Tasks, what became of them, and how often each was tried in vain."""

    tasks: Sequence[Any]
    waiting: deque[int]
    outcomes: dict[int, Any] = field(default_factory=dict)
    failures: Counter[int] = field(default_factory=Counter)
    losses: Counter[int] = field(default_factory=Counter)

    def fail(self, number: int, reason: str, own_fault: bool = True) -> None:
        """Notes a failure; the task is tried again, before all others, unless it was the last attempt."""
        (self.failures if own_fault else self.losses)[number] += 1
        if self.failures[number] == ATTEMPTS or self.losses[number] == LOSSES:
            self.outcomes[number] = Failed(self.failures[number] + self.losses[number], reason)
        else:
            self.waiting.appendleft(number)


class RayPool:
    """Workers on a Ray cluster, started when they are first needed.

    Args:
        folder: Where events are recorded (`workers.jsonl`); None: nowhere.
        timeout: Seconds that a task may take.
    """

    def __init__(
        self,
        job: Job,
        options: ExecutorOptions,
        gpu: bool = False,
        folder: Path | None = None,
        timeout: float = math.inf,
    ) -> None:
        check_ray(options)
        self.job, self.options, self.timeout = job, options, timeout
        self.events = folder / EVENTS if folder else None
        self.gpus = options.gpus_per_trial if options.gpus_per_trial is not None else float(gpu)
        self.workers: list[Worker] = []
        self.stored: Any = None  # the job in the object store
        self.connected = False
        self.bad_starts, self.retries = 0, 0
        self.room, self.counted_at, self.warn_at = 0, -math.inf, math.inf

    @property
    def status(self) -> str:
        working = sum(bool(worker.node) for worker in self.workers)
        nodes = len({worker.node for worker in self.workers if worker.node})
        again = f", {self.retries} tasks tried again" if self.retries else ""
        return f"({working} workers on {nodes} nodes{again})" if working else ""

    def map(self, tasks: Sequence[Any]) -> Iterator[Any]:
        """The results of tasks in their order; `Failed` for one that failed three times."""
        batch, yielded = Batch(tasks, deque(range(len(tasks)))), 0
        while yielded < len(tasks):
            self.hire(len(tasks) - len(batch.outcomes) - yielded)
            self.assign(batch)
            self.collect(batch)
            while yielded in batch.outcomes:
                yield batch.outcomes.pop(yielded)
                yielded += 1

    def stream(self, more: Callable[[], Sequence[Any]]) -> Iterator[tuple[int, Any]]:
        """Results with the numbers of their tasks, as they come; `more` gives tasks where none wait, or no more."""
        batch = Batch([], deque())
        while True:
            if not batch.waiting:
                tasks = more()
                batch.waiting.extend(range(len(batch.tasks), len(batch.tasks) + len(tasks)))
                batch.tasks = [*batch.tasks, *tasks]
            working = sum(worker.task is not None for worker in self.workers)
            if not batch.waiting and not working:
                return
            self.hire(working + len(batch.waiting))
            self.assign(batch)
            self.collect(batch)
            for number in sorted(batch.outcomes):
                yield number, batch.outcomes.pop(number)

    # Workers

    def hire(self, count: int) -> None:
        """Starts workers up to what the cluster has room for; lets go those that wait in vain for room."""
        self.connect()
        count = min(count, self.count_room())
        for _ in range(count - len(self.workers)):
            actor, device = self.host.remote(), "cuda" if self.gpus else "cpu"
            opened = actor.open.remote(os.getcwd(), loaded_plugins(), self.threads, device, [self.stored])
            self.workers.append(Worker(actor, opened))
        for worker in [worker for worker in self.workers if not worker.node][: max(0, len(self.workers) - self.room)]:
            self.dismiss(worker)

    def connect(self) -> None:
        if self.stored is not None:
            return
        import ray

        self.ray = ray
        if not ray.is_initialized():
            try:
                ray.init(self.options.ray_address, log_to_driver=False, include_dashboard=False, logging_level="error")
            except (ConnectionError, RuntimeError, ValueError) as error:
                reason = " ".join(str(error).split())[:200]
                raise UserError(
                    f"no Ray cluster at {self.options.ray_address} ({reason}); start one with `ray start --head`, or "
                    "leave --ray-address out"
                ) from None
            self.connected = True
        # An actor that died is replaced here, where it is known what it was doing.
        resources = {"num_cpus": self.options.cpus_per_trial, "num_gpus": self.gpus, "max_restarts": 0}
        self.host = ray.remote(**resources)(Host)
        self.stored = ray.put(self.job)

    @property
    def threads(self) -> int:
        return max(1, int(self.options.cpus_per_trial))

    def count_room(self) -> int:
        """How many workers the cluster has room for, which changes with its nodes."""
        if time.monotonic() - self.counted_at > POLL:
            available = self.ray.cluster_resources()
            needed = {"CPU": self.options.cpus_per_trial, "GPU": self.gpus}
            # Half a GPU cannot be taken from two different ones, so whole shares of each device are counted.
            rooms = [shares(available.get(name, 0.0), amount) for name, amount in needed.items() if amount]
            self.room = min([*rooms, self.options.max_concurrent_trials or math.inf])  # type: ignore[assignment]
            self.counted_at = time.monotonic()
            self.warn_of_waiting(needed, available)
        return self.room

    def warn_of_waiting(self, needed: Mapping[str, float], available: Mapping[str, float]) -> None:
        """Says what a worker needs, where there has been none for long; at once, if the cluster has no room for one."""
        if any(worker.node for worker in self.workers):
            self.warn_at = math.inf
        elif self.warn_at == math.inf:
            self.warn_at = self.counted_at + (PATIENCE if self.room else 0.0)
        if self.counted_at >= self.warn_at:
            parts = [f"{amount:g} {name} of {available.get(name, 0.0):g}" for name, amount in needed.items() if amount]
            say(f"waiting for workers: each needs {' and '.join(parts)} in the cluster")
            self.warn_at = self.counted_at + PATIENCE

    def dismiss(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.ray.kill(worker.actor)

    # Tasks

    def assign(self, batch: Batch) -> None:
        """Gives waiting tasks to idle workers."""
        for worker in self.workers:
            if worker.node and worker.answer is None and batch.waiting:
                worker.task = batch.waiting.popleft()
                worker.deadline = time.monotonic() + self.timeout
                worker.answer = worker.actor.do.remote(batch.tasks[worker.task])

    def collect(self, batch: Batch) -> None:
        """Waits for the next answers, and deals with each."""
        pending = {worker.answer: worker for worker in self.workers if worker.answer is not None}
        if not pending:
            return time.sleep(POLL)
        wait = min([POLL, *(max(0.0, worker.deadline - time.monotonic()) for worker in pending.values())])
        answers, _ = self.ray.wait(list(pending), timeout=wait)
        for answer in answers:
            self.receive(pending[answer], batch)
        for worker in [worker for worker in self.workers if worker.deadline < time.monotonic()]:
            self.lose(worker, batch, f"no answer within {self.timeout:g} s")
        return None

    def receive(self, worker: Worker, batch: Batch) -> None:
        """Takes the answer of a worker: that it is ready, a result, an exception, or that it is dead."""
        from ray.exceptions import RayError, RayTaskError

        task, number = worker.answer, worker.task
        try:
            result = self.ray.get(task)
        except RayTaskError as error:
            if number is None:
                return self.bad_start(worker, str(error), ATTEMPTS)
            self.record("task failed", worker, batch, reason=last_line(str(error)))
            batch.fail(number, str(error))
        except RayError as error:
            if number is None:
                return self.bad_start(worker, str(error), DEATHS)
            return self.lose(worker, batch, f"its worker died: {error}", not self.node_is_lost(worker, error))
        else:
            if number is None:
                worker.node, self.bad_starts = result, 0
            else:
                batch.outcomes[number] = result
        worker.task, worker.answer, worker.deadline = None, None, math.inf
        return None

    def lose(self, worker: Worker, batch: Batch, reason: str, own_fault: bool = True) -> None:
        """Gives up a worker; its task is tried on another one."""
        self.record("worker lost" if own_fault else "node lost", worker, batch, reason=last_line(reason))
        self.dismiss(worker)
        if worker.task is not None:
            self.retries += 1
            batch.fail(worker.task, reason, own_fault)

    def node_is_lost(self, worker: Worker, error: Exception) -> bool:
        """Whether a whole node has gone: at first it just cannot be reached; of a killed worker its node tells."""
        from ray.exceptions import ActorUnavailableError

        alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        return isinstance(error, ActorUnavailableError) or worker.node not in alive

    def bad_start(self, worker: Worker, reason: str, most: int) -> None:
        """A worker that could not start; if so many in a row could not, there is no use in trying again."""
        self.bad_starts += 1
        self.record("worker did not start", worker, reason=last_line(reason))
        self.dismiss(worker)
        if self.bad_starts >= most and not any(other.node for other in self.workers):
            raise UserError(f"no worker could start, the last for: {last_line(reason)}; is nasformer on every node?")

    def record(self, event: str, worker: Worker, batch: Batch | None = None, **facts: Any) -> None:
        """Keeps what happened, for the report; not in the journal, which is the same whatever happens."""
        if self.events:
            attempt = {} if batch is None or worker.task is None else {"attempt": batch.failures[worker.task] + 1}
            append_json(
                self.events, {"time": round(time.time(), 3), "event": event, "node": worker.node, **attempt, **facts}
            )

    def close(self) -> None:
        """Ends the workers, and the cluster if it was started for them."""
        for worker in [*self.workers]:
            self.dismiss(worker)
        if self.connected:
            self.ray.shutdown()
            self.connected = False
        self.stored = None


def shares(available: float, needed: float) -> int:
    """How many workers fit; one that needs a part of a device gets it from a single one.

    >>> shares(2.0, 0.4), shares(3.0, 2.0)
    (4, 1)
    """
    return int(available) * int(1 / needed + 1e-9) if needed <= 1 else int(available / needed + 1e-9)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


def result_of(outcome: Any) -> Any:
    """The result of a task; UserError with what went wrong, where a failed task cannot be left out."""
    if isinstance(outcome, Failed):
        raise UserError(f"a task failed {outcome.attempts} times, the last time with: {last_line(outcome.traceback)}")
    return outcome
