"""Pools of workers, which do tasks side by side: processes of this machine (`--jobs`), or workers of a Ray cluster.

A pool gives results in the order of its tasks, so nothing depends on who was fast.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from nasformer.data.loaders import BatchSource
from nasformer.errors import UserError, is_out_of_memory, last_line, one_line
from nasformer.latency.measure import peak_of
from nasformer.runs.options import ExecutorOptions, JobOptions
from nasformer.search.run import Failed
from nasformer.train.checkpoint import StopSignals
from nasformer.train.loop import Trainer, teacher_of
from nasformer.train.recipe import Recipe
from nasformer.utils.child import Child, Ended, Send
from nasformer.utils.device import cpu_threads, threads_are_fixed
from nasformer.utils.files import append_json, read_json, write_json
from nasformer.utils.plugins import load_plugins, loaded_plugins
from nasformer.utils.progress import Report, progress, progress_to, say
from nasformer.utils.schema import from_json
from nasformer.utils.units import format_quantity

Work = Callable[[Any], Any]


class Job(Protocol):
    """Work of a pool: opened once in each worker, which then does tasks one after the other."""

    def open(self, device: str) -> Work: ...


def result_of(outcome: Any) -> Any:
    """The result of a task; UserError with what went wrong, where a failed task cannot be left out."""
    if isinstance(outcome, Failed):
        raise UserError(f"a task failed {outcome.attempts} times, the last time with: {last_line(outcome.traceback)}")
    return outcome


def in_order(results: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Results in the order of their numbers, each as soon as those before it are there.

    >>> list(in_order([(1, "b"), (0, "a"), (2, "c")]))
    ['a', 'b', 'c']
    """
    waiting, following = dict[int, Any](), 0
    for number, result in results:
        waiting[number] = result
        while following in waiting:
            yield waiting.pop(following)
            following += 1


# How many trainings run at a time

GPU_CORES, CPU_CORES = 2, 4
"""Cores for each training on a GPU, whose kernels they launch, and on the CPU itself."""
CONTEXT = 10**9
"""Bytes of a GPU's memory that a process takes before it computes anything."""
SHARE = 0.9
"""Share of the GPU's free memory that trainings may fill."""


def step_memory(trainer: Trainer, step: int, images: Any, targets: Any, teacher: nn.Module | None = None) -> int:
    """Peak device memory of a training in bytes, without the images; measured on one step."""
    peak, _ = peak_of(lambda x: trainer.step(step, x, targets), images)
    return peak + kept_bytes(trainer.model, trainer.recipe) + (kept_bytes(teacher) if teacher else 0)


def training_memory(
    batches: BatchSource, model: nn.Module, recipe: Recipe, device: torch.device, teacher: nn.Module | None = None
) -> int:
    """Peak device memory of a model's training in bytes, with its own copy of the images; runs two steps."""
    taught_by = teacher_of(recipe, batches, device, teacher)
    trainer = Trainer(model.to(device).train(), batches, recipe, teacher=taught_by, quiet=True)
    images, targets = next(batches.train_batches(0))
    return step_memory(trainer, 0, images, targets, teacher) + image_bytes(batches)


def kept_bytes(model: nn.Module, recipe: Recipe | None = None) -> int:
    """Bytes that weights and optimizer state take between two steps."""
    copies = 1 if recipe is None else weight_copies(recipe)
    return 4 * copies * sum(weight.numel() for weight in model.parameters())


def weight_copies(recipe: Recipe) -> int:
    """How many tensors a training keeps for each weight: itself, the optimizer's moments, and perhaps an average."""
    return 1 + (2 if recipe.optimizer == "adamw" else 1) + bool(recipe.ema)


def image_bytes(batches: BatchSource) -> int:
    """Bytes of the images that are kept on the device; 0 where they are streamed."""
    data = getattr(batches, "data", None)
    splits = [getattr(data, name, None) for name in ("train", "holdout", "test", "uncropped")]
    images = [getattr(split, "images", None) for split in splits]
    tensors = [tensor for part in images for tensor in (part if isinstance(part, list) else [part])]
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def fitting_jobs(tasks: int, cores: int, free: float, needed: float) -> int:
    """How many trainings the cores and the GPU's memory have room for; at least one.

    >>> [fitting_jobs(10, cores=16, free=free, needed=2e9) for free in (130e9, 10e9, 1e9)]
    [8, 3, 1]
    """
    return max(1, min(tasks, cores // GPU_CORES, int(SHARE * free / (needed + CONTEXT))))


def choose_jobs(
    jobs: int | Literal["auto"], tasks: int, device: torch.device, label: str, memory: Callable[[], int]
) -> int:
    """How many of the trainings run at a time; announces its choice.

    Args:
        memory: Measures what the largest of them needs on a GPU.
    """
    if jobs != "auto" or tasks < 2:
        return max(1, min(tasks, jobs if jobs != "auto" else 1))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device.type != "cuda":
        count, why = max(1, min(tasks, cores // CPU_CORES)), f"on {cores} cores"
    else:
        needed = memory()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(device)[0]
        count = fitting_jobs(tasks, cores, free, needed)
        why = f"each needs {format_quantity(needed)} of {format_quantity(free)} free bytes, {cores} cores"
    say(f"{label}: {count} of {tasks} at a time ({why}; --jobs)")
    return count


# Processes of this machine
#
# Small nets leave a big GPU idle, so several are trained at a time, each in a process and a folder of its own, where it
# goes on after a kill. Results are those of one after the other: bit for bit on a CPU, where each has the same threads.

SIGNAL_SECONDS = 0.5
"""Seconds between two checks for signals."""


@dataclass(frozen=True)
class TaskWork:
    """Runs a task in a child process, which sends its progress to the parent."""

    job: Job
    task: Any
    device: str
    threads: int | None

    def __call__(self, send: Send) -> Any:
        with progress_to(send), cpu_threads(self.threads) if self.threads else nullcontext():
            return self.job.open(self.device)(self.task)


class LocalPool:
    """Runs tasks in processes of this machine, `count` at a time; one that runs out of memory is retried with fewer.

    Args:
        label: What the progress bar calls it.
    """

    def __init__(self, job: Job, count: int, device: torch.device, label: str) -> None:
        self.job, self.count, self.device, self.label = job, count, device, label
        self.children: dict[int, Child] = {}
        self.messages: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def map(self, tasks: Sequence[Any]) -> Iterator[Any]:
        """The results of tasks in their order; `Failed` for one that cannot be done."""
        return in_order(self.results(tasks))

    def results(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The results of tasks with their numbers, as they come."""
        waiting, reports = deque(range(len(tasks))), dict[int, Report]()
        with StopSignals() as stop, progress(f"{self.label}, %", 100) as show:
            while waiting or self.children:
                while waiting and len(self.children) < self.count:
                    number = waiting.popleft()
                    self.start(number, tasks[number])
                ended = self.receive(*self.next_message(stop), waiting, reports)
                done = len(tasks) - len(waiting) - len(self.children)
                show(*overview(done, reports, len(tasks)))
                yield from ended

    def start(self, number: int, task: Any) -> None:
        work = TaskWork(self.job, task, str(self.device), self.threads)
        self.children[number] = Child(work, lambda message: self.messages.put((number, message)))

    @property
    def threads(self) -> int | None:
        """Threads of the CPU for each process: as the user chose, or its share of all."""
        if self.device.type != "cpu":
            return None
        threads = torch.get_num_threads()
        return threads if threads_are_fixed() else max(1, threads // self.count)

    def next_message(self, stop: StopSignals) -> tuple[int, Any]:
        """The next message of any process, with the number of its task; a signal meanwhile ends the wait."""
        while True:
            if stop.requested:
                raise KeyboardInterrupt
            try:
                return self.messages.get(timeout=SIGNAL_SECONDS)
            except Empty:
                continue

    def receive(
        self, number: int, message: Any, waiting: deque[int], reports: dict[int, Report]
    ) -> list[tuple[int, Any]]:
        """Handles a message of a task: its progress, a line for the user, or its end, which it returns."""
        if isinstance(message, Ended):
            reports.pop(number, None)
            return self.end(number, message, waiting)
        if isinstance(message, Report):
            reports[number] = message
        else:
            say(f"{number + 1}: {message}")
        return []

    def end(self, number: int, ended: Ended, waiting: deque[int]) -> list[tuple[int, Any]]:
        """The result of a task; none where it ran out of memory beside others: it waits again, for fewer at a time."""
        del self.children[number]
        if ended.error is not None and is_out_of_memory(ended.error) and self.count > 1:
            self.count -= 1
            say(f"{self.label}: out of memory; from now on {self.count} at a time")
            waiting.append(number)
            return []
        if isinstance(ended.error, UserError):
            raise ended.error
        return [(number, Failed(1, ended.traceback) if ended.failed else ended.result)]

    def close(self) -> None:
        """Ends all processes; trainings write a checkpoint first."""
        for child in self.children.values():
            child.stop()
        for child in self.children.values():
            child.close()
        self.children.clear()


def overview(done: int, reports: Mapping[int, Report], tasks: int) -> tuple[int, str]:
    """Progress of all tasks: how much is done in percent, and where each is.

    >>> overview(1, {1: Report("resnet18", 50, 200, "loss 2.1"), 2: Report("vit", 0, 100, "")}, tasks=4)
    (31, '2: resnet18 50/200 loss 2.1; 3: vit 0/100')
    """
    shares = [report.done / max(report.total, 1) for report in reports.values()]
    lines = [f"{number + 1}: {report}".rstrip() for number, report in sorted(reports.items())]
    percent = int(100 * (done + sum(shares)) / tasks)
    return percent if done == tasks else min(percent, 99), "; ".join(lines)


# Workers of a Ray cluster
#
# The job (supernet, images ...) goes into the object store once; every worker opens it once and keeps it. A worker has
# one task at a time, so that it is clear whose fault it is when it dies. What can go wrong, and what then:
#
# - a task raises, hangs beyond its time, or takes its worker with it: it is tried again, three times in all;
# - a worker is killed or its node is lost: its task goes to another one, and a new worker starts where there is room;
#   the loss of a node is not the fault of the task and does not count, unless the task has seen ten of them;
# - no node is left: the pool waits for one;
# - this process is killed: workers end with it, and the journal says where the same command goes on.

ATTEMPTS, LOSSES = 3, 10
DEATHS = 30  # workers in a row that died before they were ready, as nodes come and go
POLL = 1.0  # seconds between two looks at deadlines and at the size of the cluster
PATIENCE = 60.0  # seconds without a worker before a warning says what is missing
EVENTS = "workers.jsonl"


def check_ray(options: ExecutorOptions) -> None:
    """Refuses early what a pool would refuse after a long training."""
    if options.executor == "ray" and find_spec("ray") is None:
        raise UserError("--executor ray needs Ray: pip install 'nasformer[ray]', or leave --executor out")


class Host:
    """The process of a worker: an actor that keeps an opened job."""

    def open(self, folder: str, modules: Sequence[str], threads: int, device: str, stored: Sequence[Any]) -> str:
        """Opens the job and returns the node's id. It comes in a list, as Ray must not load it before the plugins."""
        import ray

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
class TaskQueue:
    """Numbered tasks: which of them wait for a worker, the outcomes of others, and how often each has failed."""

    tasks: list[Any] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    outcomes: dict[int, Any] = field(default_factory=dict)
    failures: Counter[int] = field(default_factory=Counter)
    losses: Counter[int] = field(default_factory=Counter)

    def add(self, tasks: Sequence[Any]) -> None:
        self.waiting.extend(range(len(self.tasks), len(self.tasks) + len(tasks)))
        self.tasks.extend(tasks)

    def fail(self, number: int, reason: str, own_fault: bool = True) -> None:
        """Records a failure; the task goes to the front of the queue, unless that was its last attempt."""
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
        once = iter([tasks])
        return in_order(self.stream(lambda: next(once, [])))

    def stream(self, more: Callable[[], Sequence[Any]]) -> Iterator[tuple[int, Any]]:
        """Results with the numbers of their tasks, as they come; `more` gives tasks where none wait, or no more."""
        queue = TaskQueue()
        while True:
            if not queue.waiting:
                queue.add(more())
            working = sum(worker.task is not None for worker in self.workers)
            if not queue.waiting and not working:
                return
            self.hire(working + len(queue.waiting))
            self.assign(queue)
            self.collect(queue)
            for number in sorted(queue.outcomes):
                yield number, queue.outcomes.pop(number)

    # Workers

    def hire(self, count: int) -> None:
        """Starts as many workers as the cluster has room for, and dismisses those that wait for room in vain."""
        self.connect()
        count = min(count, self.count_room())
        for _ in range(count - len(self.workers)):
            actor, device = self.host.remote(), "cuda" if self.gpus else "cpu"
            threads = max(1, int(self.options.cpus_per_trial))
            opened = actor.open.remote(os.getcwd(), loaded_plugins(), threads, device, [self.stored])
            self.workers.append(Worker(actor, opened))
        for worker in [worker for worker in self.workers if not worker.node][: max(0, len(self.workers) - self.room)]:
            self.dismiss(worker)

    def connect(self) -> None:
        """Connects to the cluster, or starts one here, and puts the job into its object store; once."""
        if self.stored is not None:
            return
        import ray

        self.ray = ray
        if not ray.is_initialized():
            try:
                ray.init(self.options.ray_address, log_to_driver=False, include_dashboard=False, logging_level="error")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"no Ray cluster at {self.options.ray_address} ({one_line(error, 200)}); start one with "
                    "`ray start --head`, or leave --ray-address out"
                ) from None
            self.connected = True
        # An actor that died is replaced here, where it is known what it was doing.
        resources = {"num_cpus": self.options.cpus_per_trial, "num_gpus": self.gpus, "max_restarts": 0}
        self.host = ray.remote(**resources)(Host)
        self.stored = ray.put(self.job)

    def count_room(self) -> int:
        """How many workers the cluster has room for, which changes with its nodes."""
        if time.monotonic() - self.counted_at > POLL:
            available = self.ray.cluster_resources()
            needed = {"CPU": self.options.cpus_per_trial, "GPU": self.gpus}
            # Half a GPU cannot be taken from two different ones, so whole shares of each device are counted.
            rooms = [count_fitting(available.get(name, 0.0), amount) for name, amount in needed.items() if amount]
            self.room = min([*rooms, self.options.max_concurrent_trials or math.inf])  # type: ignore[assignment]
            self.counted_at = time.monotonic()
            self.warn_of_waiting(needed, available)
        return self.room

    def warn_of_waiting(self, needed: Mapping[str, float], available: Mapping[str, float]) -> None:
        """Says what a worker needs where none has started for long; at once if the cluster has no room for any."""
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

    def assign(self, queue: TaskQueue) -> None:
        """Gives waiting tasks to idle workers."""
        for worker in self.workers:
            if worker.node and worker.answer is None and queue.waiting:
                worker.task = queue.waiting.popleft()
                worker.deadline = time.monotonic() + self.timeout
                worker.answer = worker.actor.do.remote(queue.tasks[worker.task])

    def collect(self, queue: TaskQueue) -> None:
        """Waits for the next answers, and deals with each."""
        pending = {worker.answer: worker for worker in self.workers if worker.answer is not None}
        if not pending:
            return time.sleep(POLL)
        wait = min([POLL, *(max(0.0, worker.deadline - time.monotonic()) for worker in pending.values())])
        answers, _ = self.ray.wait(list(pending), timeout=wait)
        for answer in answers:
            self.receive(pending[answer], queue)
        for worker in [worker for worker in self.workers if worker.deadline < time.monotonic()]:
            self.lose(worker, queue, f"no answer within {self.timeout:g} s")
        return None

    def receive(self, worker: Worker, queue: TaskQueue) -> None:
        """Takes the answer of a worker: that it is ready, a result, an exception, or that it is dead."""
        from ray.exceptions import RayError, RayTaskError

        number = worker.task
        try:
            result = self.ray.get(worker.answer)
        except RayTaskError as error:  # it raised, and its worker lives
            if number is None:
                return self.bad_start(worker, str(error), ATTEMPTS)
            self.record("task failed", worker, queue, reason=last_line(str(error)))
            queue.fail(number, str(error))
        except RayError as error:
            if number is None:
                return self.bad_start(worker, str(error), DEATHS)
            return self.lose(worker, queue, f"its worker died: {error}", not self.node_is_lost(worker, error))
        else:
            if number is None:  # it has opened the job, and says on which node
                worker.node, self.bad_starts = result, 0
            else:
                queue.outcomes[number] = result
        worker.task, worker.answer, worker.deadline = None, None, math.inf
        return None

    def lose(self, worker: Worker, queue: TaskQueue, reason: str, own_fault: bool = True) -> None:
        """Gives up a worker; its task is tried on another one."""
        self.record("worker lost" if own_fault else "node lost", worker, queue, reason=last_line(reason))
        self.dismiss(worker)
        if worker.task is not None:
            self.retries += 1
            queue.fail(worker.task, reason, own_fault)

    def node_is_lost(self, worker: Worker, error: Exception) -> bool:
        """Whether the whole node is gone, not just the worker. At first, a lost node is merely unreachable."""
        from ray.exceptions import ActorUnavailableError

        alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        return isinstance(error, ActorUnavailableError) or worker.node not in alive

    def bad_start(self, worker: Worker, reason: str, most: int) -> None:
        """Drops a worker that could not start; gives up when `most` in a row could not."""
        self.bad_starts += 1
        self.record("worker did not start", worker, reason=last_line(reason))
        self.dismiss(worker)
        if self.bad_starts >= most and not any(other.node for other in self.workers):
            raise UserError(f"no worker could start, the last for: {last_line(reason)}; is nasformer on every node?")

    def record(self, event: str, worker: Worker, queue: TaskQueue | None = None, **facts: Any) -> None:
        """Logs an event for the report; the journal has none of this, as it is the same whatever happens."""
        if self.events:
            attempt = {} if queue is None or worker.task is None else {"attempt": queue.failures[worker.task] + 1}
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


def count_fitting(available: float, needed: float) -> int:
    """How many workers fit; a fraction of a device must come from a single device.

    >>> count_fitting(2.0, 0.4), count_fitting(3.0, 2.0)
    (4, 1)
    """
    return int(available) * int(1 / needed + 1e-9) if needed <= 1 else int(available / needed + 1e-9)


# Trainings, here or on a cluster, with the progress of all of them


@dataclass(frozen=True)
class ReportingJob:
    """A job that writes the progress of each numbered task into a file.

    Args:
        folder: On a disk that all workers share, as trainings need it anyway.
    """

    job: Job
    folder: Path

    def open(self, device: str) -> Work:
        work = self.job.open(device)

        def do(numbered: tuple[int, Any]) -> Any:
            number, task = numbered
            with progress_to(partial(self.keep, number)):
                return work(task)

        return do

    def keep(self, number: int, message: Report | str) -> None:
        if isinstance(message, Report):
            write_json(self.folder / f"{number}.json", asdict(message))
        else:
            print(message, file=sys.stderr)  # into the worker's log

    def report(self, number: int) -> Report | None:
        path = self.folder / f"{number}.json"
        return from_json(Report, read_json(path), path) if path.exists() else None


class TrainingPool(RayPool):
    """Trains on the workers of a Ray cluster, and shows the progress of all of them."""

    def __init__(self, job: Job, options: ExecutorOptions, gpu: bool, folder: Path, label: str) -> None:
        self.reporting, self.label = ReportingJob(job, folder / ".progress"), label
        super().__init__(self.reporting, options, gpu, folder)

    def map(self, tasks: Sequence[Any]) -> Iterator[Any]:
        shutil.rmtree(self.reporting.folder, ignore_errors=True)  # what a killed command has left
        with progress(f"{self.label}, %", 100) as self.show:
            yield from super().map(list(enumerate(tasks)))
        shutil.rmtree(self.reporting.folder, ignore_errors=True)

    def collect(self, queue: TaskQueue) -> None:
        super().collect(queue)
        running = [worker.task for worker in self.workers if worker.task is not None]
        reports = {number: report for number in running if (report := self.reporting.report(number))}
        done = len(queue.tasks) - len(queue.waiting) - len(running)
        percent, note = overview(done, reports, len(queue.tasks))
        self.show(percent, f"{note}  {self.status}".strip())


def run_tasks(
    job: Job,
    tasks: Sequence[Any],
    options: ExecutorOptions,
    device: torch.device,
    folder: Path,
    label: str,
    memory: Callable[[], int],
) -> list[Any] | None:
    """Results of tasks run side by side; None where the caller should run them in this process, one after the other.

    Args:
        folder: Where incidents of workers are recorded.
        memory: Measures what the largest task needs on a GPU.
    """
    if options.executor == "ray":
        pool: TrainingPool | LocalPool = TrainingPool(job, options, device.type == "cuda", folder, label)
    else:
        alone = os.environ.get("WORLD_SIZE", "1") == "1"  # processes of torchrun do each training together
        jobs = options.jobs if isinstance(options, JobOptions) and alone else 1
        count = choose_jobs(jobs, len(tasks), device, label, memory)
        if count == 1:
            return None
        pool = LocalPool(job, count, device, label)
    with closing(pool):
        return [result_of(outcome) for outcome in pool.map(tasks)]
