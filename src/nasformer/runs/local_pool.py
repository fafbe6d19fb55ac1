"""Trainings side by side on this machine (`--jobs`): how many, and the processes that do them; or on Ray's workers.

Small nets leave a big GPU idle, so several are trained at a time, each in a process and a folder of its own, where it
goes on after a kill. Results are those of one after the other: bit for bit on a CPU, where each has the same threads.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nasformer.data.loaders import BatchSource
from nasformer.errors import UserError, is_out_of_memory
from nasformer.latency.measure import peak_of
from nasformer.runs.options import ExecutorOptions, JobOptions
from nasformer.runs.ray_pool import Batch, Job, RayPool, Work, result_of
from nasformer.search.run import Failed
from nasformer.train.checkpoint import StopSignals
from nasformer.train.loop import Trainer, teacher_of
from nasformer.train.recipe import Recipe
from nasformer.utils.child import Child, Ended, Send
from nasformer.utils.device import cpu_threads, threads_are_fixed
from nasformer.utils.files import read_json, write_json
from nasformer.utils.progress import Report, progress, progress_to, say
from nasformer.utils.schema import from_json
from nasformer.utils.units import format_quantity

GPU_CORES, CPU_CORES = 2, 4
"""Cores for each training on a GPU, whose kernels they launch, and on the CPU itself."""
CONTEXT = 10**9
"""Bytes of a GPU's memory that a process takes before it computes anything."""
SHARE = 0.9
"""Of the GPU's free memory that trainings may fill."""
POLL = 0.5
"""Seconds between two looks for signals."""


# How many


def step_memory(trainer: Trainer, step: int, images: Any, targets: Any, teacher: nn.Module | None = None) -> int:
    """The most bytes of the device's memory that a training needs, images aside; measured by a step of it."""
    peak, _ = peak_of(lambda x: trainer.step(step, x, targets), images)
    return peak + kept_bytes(trainer.model, trainer.recipe) + (kept_bytes(teacher) if teacher else 0)


def training_memory(
    batches: BatchSource, model: nn.Module, recipe: Recipe, device: torch.device, teacher: nn.Module | None = None
) -> int:
    """Bytes that a training of a model needs, its own copy of the images included; two steps of it are made."""
    taught_by = teacher_of(recipe, batches, device, teacher)
    trainer = Trainer(model.to(device).train(), batches, recipe, teacher=taught_by, quiet=True)
    images, targets = next(batches.train_batches(0))
    return step_memory(trainer, 0, images, targets, teacher) + image_bytes(batches)


def kept_bytes(model: nn.Module, recipe: Recipe | None = None) -> int:
    """What a model's weights take between two steps, with all that its optimizer keeps."""
    copies = 1 if recipe is None else weight_copies(recipe)
    return 4 * copies * sum(weight.numel() for weight in model.parameters())


def weight_copies(recipe: Recipe) -> int:
    """The weights, the optimizer's moments and, where there is one, their moving average."""
    return 1 + (2 if recipe.optimizer == "adamw" else 1) + bool(recipe.ema)


def image_bytes(batches: BatchSource) -> int:
    """Bytes of the images that are kept on the device; 0 where they are streamed."""
    data = getattr(batches, "data", None)
    splits = [getattr(data, name, None) for name in ("train", "holdout", "test", "uncropped")]
    images = [getattr(split, "images", None) for split in splits]
    tensors = [tensor for part in images for tensor in (part if isinstance(part, list) else [part])]
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def fitting_jobs(tasks: int, cores: int, free: float, needed: float) -> int:
    """So many trainings as have cores, and memory of the GPU; at least one.

    >>> [fitting_jobs(10, cores=16, free=free, needed=2e9) for free in (130e9, 10e9, 1e9)]
    [8, 3, 1]
    """
    return max(1, min(tasks, cores // GPU_CORES, int(SHARE * free / (needed + CONTEXT))))


def choose_jobs(
    jobs: int | Literal["auto"], tasks: int, device: torch.device, label: str, memory: Callable[[], int]
) -> int:
    """How many of the trainings run at a time; what is chosen is said.

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


# The processes


@dataclass(frozen=True)
class TaskWork:
    """A task as a process of its own does it; its progress is sent to the parent."""

    job: Job
    task: Any
    device: str
    threads: int | None

    def __call__(self, send: Send) -> Any:
        with progress_to(send), cpu_threads(self.threads) if self.threads else nullcontext():
            return self.job.open(self.device)(self.task)


class LocalPool:
    """Does tasks in processes of this machine, so many at a time; a task that runs out of memory is tried with fewer.

    Args:
        label: What the progress bar calls it.
    """

    status = ""

    def __init__(self, job: Job, count: int, device: torch.device, label: str) -> None:
        self.job, self.count, self.device, self.label = job, count, device, label
        self.children: dict[int, Child] = {}
        self.messages: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def map(self, tasks: Sequence[Any]) -> Iterator[Any]:
        """The results of tasks in their order; `Failed` for one that cannot be done."""
        waiting, outcomes, yielded = deque(range(len(tasks))), dict[int, Any](), 0
        reports = dict[int, Report]()
        with StopSignals() as stop, progress(f"{self.label}, %", 100) as show:
            while yielded < len(tasks):
                while waiting and len(self.children) < self.count:
                    self.start(waiting[0], tasks[waiting.popleft()])
                number, message = self.next_message(stop)
                if isinstance(message, Ended):
                    self.receive(number, message, waiting, outcomes)
                    reports.pop(number, None)
                elif isinstance(message, Report):
                    reports[number] = message
                else:
                    say(f"{number + 1}: {message}")
                done = len(tasks) - len(waiting) - len(self.children)
                show(*overview(done, reports, len(tasks)))
                while yielded in outcomes:
                    yield outcomes.pop(yielded)
                    yielded += 1

    def stream(self, more: Callable[[], Sequence[Any]]) -> Iterator[tuple[int, Any]]:
        raise UserError("an asynchronous search needs workers: --executor ray")

    def start(self, number: int, task: Any) -> None:
        work = TaskWork(self.job, task, str(self.device), self.threads)
        self.children[number] = Child(work, partial(self.put, number))

    @property
    def threads(self) -> int | None:
        """Threads of the CPU for each process: as the user chose, or its share of all."""
        if self.device.type != "cpu":
            return None
        threads = torch.get_num_threads()
        return threads if threads_are_fixed() else max(1, threads // self.count)

    def put(self, number: int, message: Any) -> None:
        self.messages.put((number, message))

    def next_message(self, stop: StopSignals) -> tuple[int, Any]:
        while True:
            if stop.requested:
                raise KeyboardInterrupt
            try:
                return self.messages.get(timeout=POLL)
            except Empty:
                continue

    def receive(self, number: int, ended: Ended, waiting: deque[int], outcomes: dict[int, Any]) -> None:
        """Takes the end of a task; one that ran out of memory beside others waits for them to end."""
        del self.children[number]
        if ended.error is not None and is_out_of_memory(ended.error) and self.count > 1:
            self.count -= 1
            say(f"{self.label}: out of memory; from now on {self.count} at a time")
            waiting.append(number)
        elif isinstance(ended.error, UserError):
            raise ended.error
        else:
            outcomes[number] = Failed(1, ended.traceback) if ended.failed else ended.result

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


# On workers of a Ray cluster


@dataclass(frozen=True)
class ReportingJob:
    """A job that keeps the progress of each of its tasks, which are numbered, in a file.

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

    def collect(self, batch: Batch) -> None:
        super().collect(batch)
        running = [worker.task for worker in self.workers if worker.task is not None]
        reports = {number: report for number in running if (report := self.reporting.report(number))}
        done = len(batch.tasks) - len(batch.waiting) - len(running)
        percent, note = overview(done, reports, len(batch.tasks))
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
    """The results of tasks, done side by side; None where they are to be done in this process, one after the other.

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
