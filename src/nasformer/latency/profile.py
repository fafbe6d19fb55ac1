"""A profile: the measured latency and memory of the layers of a space, and the prediction of any net from them.

The latency of a net is about the sum over its layers. `overhead_ms` and `scale` then turn the sum into what whole nets
were measured to take.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
import torch

from nasformer.errors import UserError
from nasformer.latency.measure import (
    Clock,
    EagerRunner,
    Machine,
    TimedNet,
    describe_machine,
    inference_without_gc,
    layer_peaks,
    make_clock,
    make_runner,
    nbytes,
    peak_of,
    quartiles,
    time_nets,
    visit,
)
from nasformer.models.base import Segment
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.utils.device import cpu_threads
from nasformer.utils.files import read_json, write_json
from nasformer.utils.progress import in_hours, say
from nasformer.utils.schema import from_json, is_version, to_json

# Times of layers: measured ones by key in a table, those of other kinds by a law fitted to the kinds like them.

UNTIMED_OPTIONS = frozenset(
    {"num_classes", "stochastic_depth", "layer_scale", "last_gamma", "init_std", "norm_eps", "drop_rate"}
)
"""Options of layers that change the time of a forward pass not at all, or (the number of classes) next to nothing."""


@dataclass(frozen=True)
class Entry:
    """A kind of layer: the median of its times in milliseconds, their quartiles, how many runs, and its peak memory."""

    ms: float
    low: float
    high: float
    runs: int
    bytes: int | None = None


# Kinds of layers


def key_of(segment: Segment) -> str:
    """The kind of a layer in words, which is its name in a profile.

    >>> from nasformer.layers.basic import LayerNorm
    >>> key_of(Segment.of("norm", LayerNorm, embed_dim=192))
    'LayerNorm(embed_dim=192)'
    """
    return _key(*segment.kind)  # type: ignore[arg-type]


@lru_cache(maxsize=100_000)
def _key(layer: Any, options: tuple[tuple[str, Hashable], ...]) -> str:
    words = sorted((name, _word(value)) for name, value in options if name not in UNTIMED_OPTIONS)
    return f"{layer.__name__}({', '.join(f'{name}={value}' for name, value in words)})"


def _word(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


def group_of(segment: Segment) -> str:
    """Kinds that differ in numbers alone: one law may hold for them."""
    classes = [f"{name}={_word(value)}" for name, value in segment.options if isinstance(value, type | str)]
    return ", ".join([segment.layer.__name__, *classes])


def features_of(segment: Segment) -> dict[str, float]:
    """Logarithms of all that a time may grow with, as a power of it: MACs, parameters and the options in numbers."""
    cost = segment.cost()
    sizes: dict[str, float] = {"macs": cost.macs + cost.position_macs, "params": cost.params}
    sizes |= {name: _size(value) for name, value in segment.options if name not in UNTIMED_OPTIONS and _size(value) > 0}
    return {name: math.log1p(size) for name, size in sizes.items()}


def _size(value: Any) -> float:
    """A number, or the product of several, such as the positions of a grid; 0 for anything else."""
    if isinstance(value, tuple):
        return math.prod(map(_size, value))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


# Laws for kinds that were not measured

RIDGE = 1e-3  # of the number of rows: features such as MACs and width say nearly the same
REACH = 2.0  # of a measured kind, in standard deviations of the features
NOISE = 0.1  # how little a single residual is trusted, relative to how smooth residuals are
ROOM = 2.0  # factor by which a law may leave the range of the measured values


@dataclass(frozen=True)
class Law:
    """The logarithm of a value as a function of features, which are logarithms too: a power law and a Gaussian process.

    The power law has an exponent for each feature. What it misses near measured kinds (caches, odd widths, kernels that
    suit one shape) is smooth enough to be worth keeping: a Gaussian process adds the residuals of near kinds, and
    leaves the power law alone where there are none. (ESFormer on a CPU: the median error of kinds left out went from
    19 % to 8 % for inverted bottlenecks, from 11 % to 6 % for ConvNeXt blocks.)

    >>> sizes = [{"width": float(np.log(n))} for n in (8, 16, 32, 64)]
    >>> law = Law.fit(sizes, [3 * n**2 for n in (8, 16, 32, 64)])
    >>> round(law({"width": float(np.log(24))}) / (3 * 24**2), 2)
    1.0
    """

    names: list[str]
    centre: list[float]
    spread: list[float]
    slopes: list[float]
    constant: float
    points: list[list[float]]
    pulls: list[float]
    lowest: float
    highest: float

    @classmethod
    def fit(cls, features: Sequence[Mapping[str, float]], values: Sequence[float]) -> Self:
        """By ridge regression, then by its residuals; features that do not vary are left out."""
        every = sorted({name for row in features for name in row})
        names = [name for name in every if len({round(row.get(name, 0.0), 9) for row in features}) > 1]
        table = np.array([[row.get(name, 0.0) for name in names] for row in features]).reshape(len(features), -1)
        centre, spread = table.mean(0), table.std(0)
        points, logs = (table - centre) / spread, np.log(np.maximum(values, 1e-12))
        gram = points.T @ points + RIDGE * len(logs) * np.eye(len(names))
        slopes = np.linalg.solve(gram, points.T @ (logs - logs.mean()))
        residuals = logs - logs.mean() - points @ slopes
        pulls = np.linalg.solve(kernel(points, points) + NOISE * np.eye(len(logs)), residuals)
        return cls(
            names=names,
            centre=centre.tolist(),
            spread=spread.tolist(),
            slopes=slopes.tolist(),
            constant=float(logs.mean()),
            points=points.tolist(),
            pulls=pulls.tolist(),
            lowest=float(min(values)) / ROOM,
            highest=float(max(values)) * ROOM,
        )

    def __call__(self, features: Mapping[str, float]) -> float:
        row = np.array([features.get(name, mean) for name, mean in zip(self.names, self.centre, strict=True)])
        point = (row - np.array(self.centre)) / np.array(self.spread)
        near = kernel(point[None], np.array(self.points).reshape(len(self.pulls), -1))[0]
        log = self.constant + point @ np.array(self.slopes) + near @ np.array(self.pulls)
        bounds = np.log([self.lowest, self.highest]) if self.lowest > 0 else (-np.inf, np.inf)
        return float(np.exp(np.clip(log, *bounds)))


def kernel(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The Gaussian process's: 1 for equal points, near 0 beyond the reach."""
    distances = ((points[:, None] - others[None]) ** 2).sum(-1)
    return np.exp(-distances / (2 * REACH**2))


def fit_laws(segments: Sequence[Segment], table: Mapping[str, Entry]) -> dict[str, dict[str, Law]]:
    """Laws of the time ("ms") and of the memory ("bytes") for every group of kinds in the table."""
    kinds = {key_of(segment): segment for segment in segments if key_of(segment) in table}
    groups: dict[str, list[str]] = {}
    for key, segment in kinds.items():
        groups.setdefault(group_of(segment), []).append(key)
    laws: dict[str, dict[str, Law]] = {}
    for group, keys in groups.items():
        features, laws[group] = [features_of(kinds[key]) for key in keys], {}
        for what in ("ms", "bytes"):
            values = [getattr(table[key], what) for key in keys]
            if None not in values:
                laws[group][what] = Law.fit(features, values)
    return laws


VERSION = 1
FLOAT_BYTES = 4  # of a weight
MAX_ERROR = 0.1  # median on the hold-out, from which on a profile is not used unless it is named


@dataclass(frozen=True)
class Setup:
    """How nets were run and timed; `pace_ms` is the time of the reference net: low quartile, median, high quartile."""

    device: str
    backend: str
    batch_size: int
    threads: int
    precision: str
    clock: str
    rounds: int
    pace_ms: tuple[float, float, float]


@dataclass(frozen=True)
class HoldOut:
    """Prediction errors on nets that had no part in the profile, relative to the measured values."""

    nets: int = 0
    median_error: float | None = None
    p90_error: float | None = None
    median_error_uncalibrated: float | None = None
    from_table: float | None = None
    fastest_ms: float | None = None
    slowest_ms: float | None = None
    median_memory_error: float | None = None
    p90_memory_error: float | None = None
    measured_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """What was measured, and where.

    Args:
        options: The model's options, such as the image size.
        table: The kinds of layers by `key_of`.
        laws: For kinds beyond the table, by `group_of`: a law of the time ("ms") and of the memory ("bytes").
        image_bytes: The batch of images, which is held as long as a net runs.
    """

    space: str
    options: dict[str, Any]
    setup: Setup
    machine: Machine
    table: dict[str, Entry]
    laws: dict[str, dict[str, Law]]
    overhead_ms: float = 0.0
    scale: float = 1.0
    image_bytes: int = 0
    holdout: HoldOut = field(default_factory=HoldOut)

    def costs(self, plan: Sequence[Segment]) -> dict[str, float]:
        """The predicted costs of a net, by the names that budgets use."""
        latency: dict[str, float] = {"latency_ms": self.latency_ms(plan)}
        return latency | {"memory_bytes": self.memory_bytes(plan)} if self.has_memory else latency

    def latency_ms(self, plan: Sequence[Segment]) -> float:
        return round(max(0.0, self.overhead_ms + self.scale * self.sum_ms(plan)), 4)

    def sum_ms(self, plan: Sequence[Segment]) -> float:
        """The plain sum over the layers."""
        return sum(self._value(segment, "ms") for segment in plan)

    @property
    def has_memory(self) -> bool:
        return all(entry.bytes is not None for entry in self.table.values())

    def memory_bytes(self, plan: Sequence[Segment]) -> int:
        """Weights, images, and the most that a layer holds at a time."""
        return weight_bytes(plan) + self.image_bytes + round(max(self._value(segment, "bytes") for segment in plan))

    def coverage(self, plan: Sequence[Segment]) -> float:
        """The share of the layers that the table holds."""
        return sum(key_of(segment) in self.table for segment in plan) / len(plan)

    @property
    def is_inaccurate(self) -> bool:
        return self.holdout.median_error is not None and self.holdout.median_error > MAX_ERROR

    @property
    def pace(self) -> float:
        """The median pace in seconds: the level that all times are brought to."""
        return self.setup.pace_ms[1] / 1000

    def _value(self, segment: Segment, what: str) -> float:
        """The "ms" or "bytes" of a layer."""
        cell = key_of(segment), what
        if cell not in self._cache:
            entry = self.table.get(cell[0])
            self._cache[cell] = getattr(entry, what) if entry else self._by_law(segment, what)
        return self._cache[cell]

    def _by_law(self, segment: Segment, what: str) -> float:
        group = group_of(segment)
        if group not in self.laws:
            raise UserError(
                f"the profile of {self.space} has no {group}, which this architecture needs; profile the space again"
            )
        return self.laws[group][what](features_of(segment))

    @cached_property
    def _cache(self) -> dict[tuple[str, str], float]:
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """Tells profiles apart, so that a journal never mixes the costs of two."""
        return hashlib.blake2b(json.dumps(self.to_dict(), sort_keys=True).encode(), digest_size=8).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        content = {item.name: to_json(getattr(self, item.name)) for item in fields(self)}
        for part in ("machine", "holdout"):
            content[part] = {name: value for name, value in content[part].items() if value is not None}
        return {"profile": VERSION, **content}

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        remedy = f"make one with nasformer profile --out {path}"
        if not Path(path).is_file():
            raise UserError(f"there is no profile {path}; {remedy}")
        content = read_json(Path(path))
        if "profile" not in content:
            raise UserError(f"{path} is not a profile; {remedy}")
        if not is_version(content["profile"], VERSION):
            raise UserError(f"{path} is a profile of another version of nasformer; profile the space again")
        return from_json(cls, content, path, f"it is not a profile as nasformer writes it; {remedy}")


def weight_bytes(plan: Sequence[Segment]) -> int:
    return FLOAT_BYTES * sum(segment.cost().params for segment in plan)


# Calibration: from sums over layers to whole nets

REWEIGHTINGS, SMALLEST_DEVIATION = 50, 1e-3
"""Of the fit by least absolute deviations; smaller ones weigh no more."""


def fit_line(sums: Sequence[float], measured: Sequence[float]) -> tuple[float, float]:
    """Overhead and scale with the least relative errors, of which a few large ones may be accidents.

    So what counts is their size, not its square. The overhead is never negative: that would promise small nets for
    less than their layers take.

    >>> overhead, scale = fit_line([1, 2, 3, 4, 5], [2.5, 4.5, 6.5, 80, 10.5])
    >>> round(overhead, 2), round(scale, 2)
    (0.5, 2.0)
    """
    times, rows = np.asarray(measured, float), np.asarray(sums, float)
    design = np.stack([np.ones_like(rows), rows], 1) / times[:, None]
    line = least_absolute_deviations(design)
    return (
        (float(line[0]), float(line[1])) if line[0] >= 0 else (0.0, float(least_absolute_deviations(design[:, 1:])[0]))
    )


def least_absolute_deviations(design: np.ndarray) -> np.ndarray:
    """The coefficients that make the rows of a design as near to 1 as can be, by iteratively reweighted squares."""
    weights = np.ones(len(design))
    for _ in range(REWEIGHTINGS):
        coefficients, *_rest = np.linalg.lstsq(design * weights[:, None], weights, rcond=None)
        weights = np.maximum(np.abs(design @ coefficients - 1), SMALLEST_DEVIATION) ** -0.5
    return coefficients


# Profiling a space on this machine: which nets to run, and the profile that follows from their times.
#
# Random nets are run whole and layer by layer, beside the smallest and the largest. The layers fill the table, the
# whole nets calibrate the sum, and other random nets, timed in the same rounds, tell how well nets are predicted.


DRAWS = 8  # archs to choose from, each time the one with the most kinds of layers that are new
TRIES = 100  # draws for each arch of the hold-out: a small space may have too few

Plan = Sequence[Segment]


def make_profile(
    space: Space,
    *,
    device: torch.device | str = "cpu",
    backend: str = "eager",
    batch_size: int = 1,
    threads: int = 1,
    nets: int = 24,
    holdout: int = 30,
    rounds: int = 7,
    seed: int = 0,
    quiet: bool = False,
) -> Profile:
    """Measure the space; with the defaults that takes about two hundred runs of a net and each of its layers a round.

    Args:
        backend: How nets are run: eager, compile or onnxruntime.
        threads: Of the CPU. One is the steadiest: it is timed by the processor time that it had, whatever else runs.
        nets: How many nets fill the table and calibrate the sum.
        holdout: How many other nets test its predictions.
    """
    device = torch.device(device)
    with cpu_threads(threads):
        runner, clock = make_runner(space, backend, device, batch_size, threads), make_clock(device, threads)
        rng = random.Random(f"profile {seed}")
        archs = covering_archs(space, nets, rng)
        others = other_archs(space, holdout, rng, archs)
        if not quiet:
            say(f"building {len(archs) + len(others)} nets of {space.name}")
        timed = [TimedNet(runner.net(arch), runner.layers(arch)) for arch in archs]
        tests = [TimedNet(runner.net(arch)) for arch in others]
        if not quiet:
            seconds = rounds * round_seconds(timed, len(tests), runner.images, clock)
            say(f"timing them and the layers of {len(archs)} of them in {rounds} rounds: about {in_hours(seconds)}")
        options: dict[str, Any] = {"rounds": rounds, "seed": seed, "label": "" if quiet else "profile"}
        paces = time_nets(timed + tests, runner.images, clock, reference=timed[0].net, **options)
        low, middle, high = (1000 * seconds for seconds in quartiles(paces))
        setup = Setup(device.type, backend, batch_size, threads, "fp32", clock.name, rounds, (low, middle, high))
        profile = with_table(empty_profile(space, setup, runner, device), space, archs, timed, runner)
        return replace(profile, holdout=hold_out(profile, space, others, tests, runner))


def empty_profile(space: Space, setup: Setup, runner: EagerRunner, device: torch.device) -> Profile:
    """A profile in which nothing is measured yet."""
    return Profile(
        space=space.name,
        options=space.full_options | ({} if space.model.task == "classify" else {"task": space.model.task}),
        setup=setup,
        machine=describe_machine(device, setup.backend),
        table={},
        laws={},
        image_bytes=nbytes(runner.images) if isinstance(runner.images, torch.Tensor) else 0,
    )


def round_seconds(timed: Sequence[TimedNet], tests: int, images: object, clock: Clock) -> float:
    """How long a round takes, by a visit of the smallest and of the largest net, which have layers to time as well."""
    start = time.perf_counter()
    with inference_without_gc():
        for net in timed[:2]:
            visit(net, images, clock, timed[0].net)
    seconds = (time.perf_counter() - start) / len(timed[:2])
    return seconds * (len(timed) + tests / 2)


# Which nets


def covering_archs(space: Space, count: int, rng: random.Random) -> list[Arch]:
    """The smallest arch first, then the largest, then random ones that together have many kinds of layers."""
    archs = list(dict.fromkeys([space.root.smallest(), space.root.largest()]))
    covered = {key_of(segment) for arch in archs for segment in space.plan(arch)}
    while len(archs) < count:
        drawn = [arch for arch in (space.root.sample(rng) for _ in range(DRAWS)) if arch not in archs]
        if not drawn:
            break
        keys = [{key_of(segment) for segment in space.plan(arch)} for arch in drawn]
        best = max(range(len(drawn)), key=lambda number: len(keys[number] - covered))
        archs.append(drawn[best])
        covered |= keys[best]
    return archs


def other_archs(space: Space, count: int, rng: random.Random, taken: Sequence[Arch]) -> list[Arch]:
    """Random archs that are not among those taken."""
    others: dict[Arch, None] = {}
    for _ in range(TRIES * count):
        if len(others) == count:
            break
        arch = space.root.sample(rng)
        if arch not in taken:
            others[arch] = None
    return list(others)


# Table and calibration


def with_table(
    profile: Profile, space: Space, archs: Sequence[Arch], nets: Sequence[TimedNet], runner: EagerRunner
) -> Profile:
    """The profile with its table, its laws and its calibration."""
    plans = [space.plan(arch) for arch in archs]
    table = fill_table(plans, nets, profile.pace, peaks_of(archs, plans, runner))
    profile = replace(profile, table=table, laws=fit_laws([segment for plan in plans for segment in plan], table))
    measured = [1000 * net.seconds(profile.pace) for net in nets]
    overhead, scale = fit_line([profile.sum_ms(plan) for plan in plans], measured)
    return replace(profile, overhead_ms=overhead, scale=scale)


def fill_table(
    plans: Sequence[Plan], nets: Sequence[TimedNet], pace: float, peaks: Mapping[str, int]
) -> dict[str, Entry]:
    """Every kind of layer with the median of its times, wherever and whenever it ran."""
    times: dict[str, list[float]] = {}
    for plan, net in zip(plans, nets, strict=True):
        for segment, seconds in zip(plan, net.layer_seconds(pace), strict=True):
            times.setdefault(key_of(segment), []).extend(1000 * value for value in seconds)
    table = {}
    for key, values in times.items():
        low, middle, high = quartiles(values)
        table[key] = Entry(middle, low, high, len(values), peaks.get(key))
    return table


@torch.inference_mode()
def peaks_of(archs: Sequence[Arch], plans: Sequence[Plan], runner: EagerRunner) -> dict[str, int]:
    """The peak memory of every kind of layer; nothing where torch does not run them."""
    peaks: dict[str, int] = {}
    if not isinstance(runner.images, torch.Tensor):
        return peaks
    for arch, plan in zip(archs, plans, strict=True):
        if any(key_of(segment) not in peaks for segment in plan):
            measured = layer_peaks(runner.layers(arch), runner.images)
            peaks |= {key_of(segment): peak for segment, peak in zip(plan, measured, strict=True)}
    return peaks


# Errors on the hold-out


def hold_out(
    profile: Profile, space: Space, archs: Sequence[Arch], nets: Sequence[TimedNet], runner: EagerRunner
) -> HoldOut:
    """Prediction errors on nets that had no part in the profile."""
    if not archs:
        return HoldOut()
    plans, measured = [space.plan(arch) for arch in archs], [1000 * net.seconds(profile.pace) for net in nets]
    errors = [abs(profile.latency_ms(plan) / ms - 1) for plan, ms in zip(plans, measured, strict=True)]
    uncalibrated = [abs(profile.sum_ms(plan) / ms - 1) for plan, ms in zip(plans, measured, strict=True)]
    memory = memory_errors(profile, runner, archs, plans)
    return HoldOut(
        nets=len(plans),
        median_error=median(errors),
        p90_error=ninetieth(errors),
        median_error_uncalibrated=median(uncalibrated),
        from_table=sum(profile.coverage(plan) for plan in plans) / len(plans),
        fastest_ms=min(measured),
        slowest_ms=max(measured),
        median_memory_error=median(memory) if memory else None,
        p90_memory_error=ninetieth(memory) if memory else None,
        measured_ms={arch.to_json(): ms for arch, ms in zip(archs, measured, strict=True)},
    )


@torch.inference_mode()
def memory_errors(profile: Profile, runner: EagerRunner, archs: Sequence[Arch], plans: Sequence[Plan]) -> list[float]:
    """Relative errors of the memory that nets need beside their weights, whose size is known."""
    errors: list[float] = []
    for arch, plan in zip(archs, plans, strict=True) if profile.has_memory else ():
        peak, _ = peak_of(runner.net(arch), runner.images)
        predicted = profile.memory_bytes(plan) - weight_bytes(plan) - profile.image_bytes
        errors.append(abs(predicted / peak - 1))
    return errors


def ninetieth(values: Sequence[float]) -> float:
    """The value that nine of ten do not exceed."""
    return sorted(values)[min(len(values) - 1, int(0.9 * len(values)))]
