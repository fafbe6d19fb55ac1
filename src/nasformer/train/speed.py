"""Speed of a training on this machine: threads of the CPU and compilation, each where a trial shows that it pays.

Neither changes what is learned, but for rounding.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import PicklingError
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.errors import UserError, last_line
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import COMPILE_OPTIONS, Supernet
from nasformer.train.evaluate import autocast
from nasformer.utils.child import Child, Send
from nasformer.utils.device import World, cpu_threads, fastest_threads, keep_compiled_code, threads_are_fixed
from nasformer.utils.files import read_json, write_json
from nasformer.utils.progress import in_hours, say
from nasformer.utils.schema import from_json
from nasformer.utils.units import check_range

# Threads of the CPU: chosen by a short trial, and recorded. On resume they are the same, since sums over other threads
# are rounded otherwise.

THREADS_FILE = "threads.json"
MOST_THREADS = 2**16
FEW_STEPS = 20
"""A training of fewer steps is over before a trial pays."""
TIMED_VALUES = 2**22
"""Values of the images that a step is timed on on a CPU, where a step on more of them takes proportionally longer."""


@dataclass(frozen=True)
class Threads:
    """The content of threads.json."""

    threads: int

    def __post_init__(self) -> None:
        check_range(self, "threads", 1, MOST_THREADS)


def enough_images(channels: int, height: int, width: int) -> int:
    """How many images a step is timed on on a CPU.

    >>> enough_images(3, 224, 224), enough_images(3, 32, 32)
    (27, 1365)
    """
    return max(2, TIMED_VALUES // (channels * height * width))


def recorded_threads(folder: Path | None) -> int | None:
    """The threads that a training began with; None where none are recorded."""
    path = folder / THREADS_FILE if folder else None
    return from_json(Threads, read_json(path), path).threads if path and path.exists() else None


def training_threads(folder: Path | None, steps: int, work: Callable[[], object], label: str, quiet: bool) -> int:
    """The number of threads for a training: as asked for, as when it began, or as a trial of its steps shows."""
    count = torch.get_num_threads() if threads_are_fixed() else recorded_threads(folder)
    if count is None:
        available = torch.get_num_threads()
        announce = available > 1 and steps >= FEW_STEPS and not quiet
        if announce:  # on a busy machine all threads can be very slow
            say(f"{label}: trying a step on 1 and on {available} threads of the CPU")
        count = fastest_threads(work) if steps >= FEW_STEPS else available
        if announce:
            words = "one thread is" if count == 1 else f"{count} threads are"
            say(f"{label}: {words} the fastest here, by this trial (--threads)")
    if folder and recorded_threads(folder) != count:
        write_json(folder / THREADS_FILE, {"threads": count})
    return count


def threads_of_training(folder: Path) -> AbstractContextManager[None]:
    """Context with the threads that were chosen for a training, unless others were asked for."""
    count = recorded_threads(folder)
    return nullcontext() if count is None or threads_are_fixed() else cpu_threads(count)


# Compilation, and whether it pays (`--train.compile auto`).
#
# The first steps run uncompiled and are timed. If what compiled steps should save is more than what compiling should
# take, a second process compiles all graphs into the compiler's cache on disk while the training goes on; when it has
# ended, the training takes them from there. (A thread would not do: tracing sets random numbers and modes of the whole
# process.) Where the cache has the graphs from an earlier run, there is no need for the second process.
#
# Compiled steps draw the same random numbers as uncompiled ones, so that results differ by rounding alone, whenever
# the training changes over, and also when it is resumed in the other mode.

WARM_UP, MEASURED = 4, 16
"""Steps that are left out, and that are timed then."""
SAVED = 0.4
"""Share of a step's time that compilation saves: AutoFormer-T at 224 px on an H200 trains at 7,400 img/s uncompiled and
at 12,300 compiled."""
GRAPH_SECONDS = 7.0
"""What a graph takes to compile with its backward, where nothing is cached: 82 s for the 12 kinds of AutoFormer-T."""
LOOK_AHEAD = 500
"""Steps among whose archs those are sought that have all kinds of blocks."""
FAILED = "the compiler has failed"
"""The reason for an error of the compiler that gives none."""
RECORD = "nasformer.json"
"""A file in the compiler's cache: seconds that compilation took the last time, by what was compiled."""


def compile_model(model: nn.Module) -> None:
    """Compiles a model in place, each graph when it is needed; a supernet has one for each kind of block."""
    if isinstance(model, Supernet):
        model.compile()
    else:
        keep_compiled_code()
        model.compile(options=COMPILE_OPTIONS)  # in place, so that weights keep their names


def undo_compilation(model: nn.Module) -> None:
    """Makes a model run uncompiled again."""
    if isinstance(model, Supernet):
        model.compile_options = None
        model.forget_layers()
    else:
        model._compiled_call_impl = None


@dataclass(frozen=True)
class CompileForecast:
    """Whether to compile, and why, in words."""

    pays: bool
    reason: str


def forecast_compilation(
    steps: int, step_seconds: float, graphs: int, cached_seconds: float | None = None
) -> CompileForecast:
    """Whether compilation pays for a number of steps on a GPU.

    Args:
        cached_seconds: What it took the last time, where the cache has the graphs; None: nothing is cached.

    >>> forecast_compilation(10_000, 0.07, 14).reason
    'saves about 5 min of 12 min, takes about 98 s (14 graphs)'
    >>> forecast_compilation(100, 0.07, 14).pays, forecast_compilation(100, 0.07, 14, cached_seconds=2.0).pays
    (False, True)
    """
    left, cost = steps * step_seconds, GRAPH_SECONDS * graphs if cached_seconds is None else cached_seconds
    cached = "" if cached_seconds is None else ", cached"
    words = (
        f"about {in_hours(SAVED * left)} of {in_hours(left)}, takes about {in_hours(cost)} ({graphs} graphs{cached})"
    )
    pays = SAVED * left > cost
    return CompileForecast(pays, f"{'saves' if pays else 'would save'} {words}")


@dataclass(frozen=True)
class Rehearsal:
    """A forward and backward pass through every graph that a training needs, on noise shaped as its images are."""

    model: nn.Module
    archs: Sequence[Arch | None]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    precision: str
    features: bool

    @classmethod
    def of(cls, model: nn.Module, archs: Sequence[Arch | None], x: Tensor, precision: str, features: bool) -> Rehearsal:
        return cls(model, archs, tuple(x.shape), x.stride(), x.dtype, precision, features)

    @property
    def graphs(self) -> int:
        """About how many graphs are compiled; a model that is compiled whole has its layers in one."""
        if isinstance(self.model, Supernet):
            return len(kinds_of(self.model, self.archs))
        return max(1, sum(isinstance(module, nn.LayerNorm | nn.BatchNorm2d) for module in self.model.modules()) // 2)

    def run(self) -> None:
        """Runs all graphs, which compiles those that are not compiled yet."""
        device = next(self.model.parameters()).device
        x = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device).normal_()
        for arch in self.archs:
            inputs = (x,) if arch is None else (x, arch)
            with autocast(device, self.precision):
                logits = self.model(*inputs, **({"outputs": {}} if self.features else {}))
            logits.float().square().mean().backward()
            self.model.zero_grad()

    @property
    def key(self) -> str:
        """A hash of all that the compiled code depends on."""
        device = next(self.model.parameters()).device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        layers = kinds_of(self.model, self.archs) if isinstance(self.model, Supernet) else [repr(self.model)]
        facts = [torch.__version__, name, *sorted(map(repr, layers)), self.shape, self.stride, self.dtype]
        return hashlib.sha256(repr([*facts, self.precision, self.features]).encode()).hexdigest()[:16]


def kinds_of(supernet: Supernet, archs: Iterable[Arch | None]) -> set[Any]:
    return {segment.kind for arch in archs if arch is not None for segment in supernet.space.plan(arch)}


def archs_with_all_kinds(supernet: Supernet, archs: Iterable[Arch]) -> list[Arch]:
    """Few of these archs that together have all their kinds of segments: each adds one to those before it."""
    seen, chosen = set[Any](), list[Arch]()
    for arch in archs:
        if new := kinds_of(supernet, [arch]) - seen:
            seen |= new
            chosen.append(arch)
    return chosen


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Context after which random numbers and statistics are as before and there are no gradients, even on errors."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    device = next(model.parameters()).device
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        model.zero_grad()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


@dataclass(frozen=True)
class CompileJob:
    """A job of another process that fills the compiler's cache."""

    rehearsal: Rehearsal

    def __call__(self, send: Send) -> None:
        compile_model(self.rehearsal.model.train())
        self.rehearsal.run()


class AutoCompile:
    """Decides during a training whether to compile it, and does so.

    Args:
        label: What the training is called in the lines that it says.
    """

    def __init__(self, model: nn.Module, world: World, label: str, quiet: bool) -> None:
        self.model, self.world, self.label, self.quiet = model, world, label, quiet
        self.device = next(model.parameters()).device
        self.steps, self.start, self.over = 0, 0.0, False
        self.rehearsal: Rehearsal | None = None
        self.child: Child | None = None

    def say(self, line: str) -> None:
        if not self.quiet:
            say(f"{self.label}: {line}")

    def end(self, line: str) -> None:
        """Says what was decided for the rest of the training."""
        self.over = True
        self.close()
        self.say(line)

    def close(self) -> None:
        if self.child:
            self.child.close()
            self.child = None

    def before_training(self, steps: int) -> None:
        """Decides where no measurement is needed."""
        if self.device.type != "cuda":
            self.end(f"not compiled, as it trains on the {self.device.type.upper()} (--train.compile)")
        elif steps <= WARM_UP + MEASURED:
            self.end(f"not compiled, for {steps} steps (--train.compile)")

    def after_step(self, left: int, make_rehearsal: Callable[[], Rehearsal | None]) -> None:
        """Times steps, decides, and changes over when the compiled code is there.

        Args:
            left: Steps of the training still to come.
            make_rehearsal: Gives what compiles all of the training; None where that cannot be said beforehand.
        """
        if self.over:
            return
        self.steps += 1
        if self.steps == WARM_UP:
            self.start = self.now()
        elif self.steps == WARM_UP + MEASURED:
            self.decide(left, (self.now() - self.start) / MEASURED, make_rehearsal())
        elif self.child and self.child.ended:
            if self.child.ended.failed:
                self.end(f"not compiled: {last_line(self.child.ended.traceback, FAILED)}")
            else:
                self.change_over()

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def decide(self, left: int, step_seconds: float, rehearsal: Rehearsal | None) -> None:
        """Compiles if that pays: in another process, unless the cache has it all or processes must compile alike."""
        self.rehearsal = rehearsal
        seconds = recorded_seconds(rehearsal.key) if rehearsal else None
        forecast = forecast_compilation(left, step_seconds, rehearsal.graphs if rehearsal else 1, seconds)
        if not self.world.agree(forecast.pays, self.device):
            return self.end(f"not compiled: it {forecast.reason} (--train.compile)")
        in_child = rehearsal is not None and seconds is None and self.world.size == 1
        self.say(f"compiling{' beside the training' if in_child else ''}, which {forecast.reason} (--train.compile)")
        if in_child and rehearsal:
            return self.compile_in_child(rehearsal)
        return self.change_over()

    def compile_in_child(self, rehearsal: Rehearsal) -> None:
        """Compiles in another process; a model that cannot be pickled is compiled in this one."""
        keep_compiled_code()  # here too, for the process to have the same folder
        try:
            self.child = Child(CompileJob(rehearsal), quiet=True)
        except (AttributeError, PicklingError, TypeError):
            self.change_over()

    def change_over(self) -> None:
        """Goes on with compiled code; where that fails, uncompiled."""
        start = self.now()
        compile_model(self.model)
        try:
            if self.rehearsal:
                with undisturbed(self.model):
                    self.rehearsal.run()
                record_seconds(self.rehearsal.key, self.now() - start)
        except Exception as error:
            undo_compilation(self.model)
            return self.end(f"not compiled: {last_line(str(error), FAILED)}")
        return self.end(f"compiled code from here on, after {in_hours(self.now() - start)}")


def record_path() -> Path:
    keep_compiled_code()
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ".")) / RECORD


def recorded_seconds(key: str) -> float | None:
    """The seconds that compilation took the last time; None where they are unknown."""
    with suppress(OSError, UserError):
        seconds = read_json(record_path()).get(key)
        return float(seconds) if isinstance(seconds, int | float) else None
    return None


def record_seconds(key: str, seconds: float) -> None:
    """Records the seconds of a compilation for the next decision, if the folder can be written."""
    with suppress(OSError, UserError):
        records = read_json(record_path()) if record_path().exists() else {}
        write_json(record_path(), {**records, key: round(seconds, 2)})
