"""Searches by latency or memory: the profile that a budget goes by, and finalists that are measured before one wins.

A profile predicts, and predictions can be wrong: so the best candidates of a search are measured in the end.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from nasformer.errors import UserError
from nasformer.latency.measure import (
    Machine,
    TimedNet,
    describe_machine,
    make_clock,
    make_runner,
    nbytes,
    peak_of,
    time_nets,
)
from nasformer.latency.profile import MAX_ERROR, Profile, Setup, make_profile, weight_bytes
from nasformer.models.registry import get_space, list_spaces
from nasformer.models.space import Space
from nasformer.search.options import BudgetOptions
from nasformer.search.run import SearchResult
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.utils.device import cpu_threads
from nasformer.utils.files import read_json, write_json
from nasformer.utils.progress import say
from nasformer.utils.schema import from_json, to_json

FOLDER = Path("profiles")
PREDICTED = ("latency_ms", "memory_bytes")
FLAGS = ("img_size", "patch_size", "in_chans")  # options of the model that commands have as options of their own
UNTIMED_MODEL_OPTIONS = frozenset(
    {"num_classes", "drop_path_rate", "super_depth", "qkv_bias_sharing", "last_gamma", "layer_scale", "drop_rate"}
)
"""Options of models that change the time of a forward pass not at all, or (the number of classes) next to nothing."""
FEW_ROUNDS = 3
"""Rounds of a profile that a run measures itself: less than half the usual time. Its accuracy is checked as ever."""


# Profiles on disk: one for each space, image size and way to run, in a folder below the current one


def default_path(space: Space, device: str, backend: str, batch_size: int, threads: int = 1) -> Path:
    """Where the profile of a space is kept, below the current folder."""
    size = timed_options(space)["img_size"]
    pixels = size if isinstance(size, int) else "x".join(map(str, size))
    return FOLDER / f"{file_name(space)}-{pixels}px-{device}-{backend}-b{batch_size}-t{threads}.json"


def unused_path(space: Space, *settings: Any) -> Path:
    """The default path, with a digest of the options in its name where that file is of other patches or channels."""
    path = default_path(space, *settings)
    try:
        taken = path.exists() and mismatch(Profile.load(path), space)
    except UserError:  # no profile at all, which is left for the user to remove
        return path
    digest = hashlib.sha256(json.dumps(timed_options(space), sort_keys=True).encode()).hexdigest()[:8]
    return path.with_stem(f"{path.stem}-{digest}") if taken else path


def file_name(space: Space) -> str:
    """The name of a space; for an expression, which may be longer than file names can be, its base and a digest."""
    if space.base is None:
        return space.name
    return f"{space.base.name}-{hashlib.sha256(space.name.encode()).hexdigest()[:8]}"


def check_replaceable(
    path: Path, space: Space, machine: Machine, device: str, backend: str, batch_size: int, threads: int
) -> None:
    """Refuse to replace a profile by one with other settings, or anything that is no profile."""
    if not path.exists():
        return
    try:
        old = Profile.load(path)
    except UserError:
        raise UserError(f"{path} exists and is no profile; remove it or choose another file with --out") from None
    other = mismatch(old, space)
    for name, value in {"device": device, "backend": backend, "batch_size": batch_size, "threads": threads}.items():
        if getattr(old.setup, name) != value:
            other = other or f"it was measured with {name} {getattr(old.setup, name)}, not {value}"
    if not old.machine.same_hardware(machine):
        other = other or f"it is of another machine ({old.machine})"
    if other:
        raise UserError(f"{path} holds another profile: {other}; remove it or choose another file with --out")


def suggested_latency(profile: Profile) -> str | None:
    """A latency that about half of the hold-out nets keep, as an option is written; None without a hold-out."""
    times = profile.holdout.measured_ms.values()
    return round_up_time(median(times)) if times else None


def round_up_time(ms: float) -> str:
    """A time with two digits, not below the given one.

    >>> round_up_time(12.31), round_up_time(0.1234), round_up_time(150.0)
    ('13ms', '130us', '150ms')
    """
    value, unit = (ms, "ms") if ms >= 1 else (1000 * ms, "us")
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(round(value / step, 6)) * step:.6g}{unit}"


# The profile that a budget goes by: the one named, or the one that fits best


def with_profile(
    space: Space, command: BudgetOptions, objectives: Sequence[str] = (), device: str = "cpu"
) -> tuple[Space, Profile | None]:
    """The space with predicted costs, and their profile, where a command limits or lowers latency or memory."""
    budget = command.budget()
    if not needs_profile(budget, command.latency_profile, objectives):
        return space, None
    profile = find_profile(space, command.latency_profile, device)
    if budget.max_memory_bytes is not None and not profile.has_memory:
        raise UserError(
            f"memory was not measured with backend {profile.setup.backend}; give --latency-profile a profile of "
            "backend eager, or leave --max-memory out"
        )
    return replace(space, predicted=profile.costs), profile


def needs_profile(budget: Budget, path: str | None, objectives: Sequence[str]) -> bool:
    """Whether a search is asked to limit or lower latency or memory."""
    lowered = {f"-{name}" for name in PREDICTED} & set(objectives)
    return bool(lowered) or (budget.max_latency_ms, budget.max_memory_bytes, path) != (None, None, None)


def check_profiled(space: Space, command: BudgetOptions, objectives: Sequence[str], device: str) -> None:
    """Refuses a space without any profile, even before the size of the images is known."""
    if not needs_profile(command.budget(), command.latency_profile, objectives):
        return
    profiles = [Profile.load(command.latency_profile)] if command.latency_profile else all_profiles().values()
    if any(profile.space == space.name for profile in profiles):
        return
    where = command.latency_profile or f"{FOLDER}/"
    raise UserError(
        f"nothing was profiled for {space.name} (looked in {where}); measure it first, for images of your size: "
        f"nasformer profile --space {shlex.quote(space.name)} --img-size SIZE --device {device}"
    )


def measure_if_missing(space: Space, command: BudgetOptions, objectives: Sequence[str], device: str) -> None:
    """Profiles a space if a command needs it and no profile fits; `find_profile` then checks its accuracy."""
    if command.latency_profile or not needs_profile(command.budget(), None, objectives):
        return
    if any(not mismatch(profile, space) for profile in all_profiles().values()):
        return
    settings, machine = (device, "eager", 1, 1), describe_machine(torch.device(device), "eager")
    path = unused_path(space, *settings)
    check_replaceable(path, space, machine, *settings)
    say(f"nothing was profiled for {space.name} with {in_words(timed_options(space))}: measuring it, for {path}")
    profile = make_profile(space, device=device, rounds=FEW_ROUNDS)
    profile.save(path)
    say(f"profile: median error {profile.holdout.median_error:.1%} on {profile.holdout.nets} other nets")


def find_profile(space: Space, path: str | None, device: str = "cpu") -> Profile:
    """The profile in a file, or the one in the folder of profiles that fits the space best."""
    if path:
        profile = Profile.load(path)
        if reason := mismatch(profile, space):
            raise UserError(f"{path} does not fit: {reason}; measure this one: {profile_command(space, device)}")
        return profile
    fitting = {file: profile for file, profile in all_profiles().items() if not mismatch(profile, space)}
    if not fitting:
        raise UserError(
            f"nothing was profiled for {space.name} with {in_words(timed_options(space))} (looked in {FOLDER}/); "
            f"measure it first: {profile_command(space, device)}"
        )
    accurate = {file: profile for file, profile in fitting.items() if not profile.is_inaccurate}
    if not accurate:
        file, profile = next(iter(fitting.items()))
        raise UserError(
            f"{file} predicts nets with a median error of {profile.holdout.median_error:.0%}, more than "
            f"{MAX_ERROR:.0%}; measure again when the machine is quieter: {profile_command(space, device)}, "
            f"or use it anyway: --latency-profile {file}"
        )
    return most_usual(accurate, device)


def all_profiles() -> dict[Path, Profile]:
    """The profiles in their folder; other files are skipped with a warning."""
    profiles = {}
    for file in sorted(FOLDER.glob("*.json")):
        try:
            profiles[file] = Profile.load(file)
        except UserError as error:
            say(f"warning: {error}")
    return profiles


def most_usual(profiles: Mapping[Path, Profile], device: str) -> Profile:
    """The profile of the device whose settings are nearest to the defaults of `nasformer profile`."""

    def deviation(profile: Profile) -> tuple[bool, ...]:
        setup = profile.setup
        return setup.device != device, setup.backend != "eager", setup.batch_size != 1, setup.threads != 1

    least = min(map(deviation, profiles.values()))
    best = {file: profile for file, profile in profiles.items() if deviation(profile) == least}
    if len(best) > 1:
        raise UserError(f"several profiles fit; name one with --latency-profile: {', '.join(map(str, best))}")
    ((file, profile),) = best.items()
    if len(profiles) > 1:
        say(f"latency by {file}, one of {len(profiles)} profiles that fit; --latency-profile names another")
    return profile


def mismatch(profile: Profile, space: Space) -> str:
    """Why a profile does not fit a space; empty where it does."""
    if profile.space != space.name:
        return f"it is of {profile.space}, not of {space.name}"
    measured = profile.options
    if (task := measured.get("task", "classify")) != space.model.task:
        return f"it is of models for --task {task}, not {space.model.task}"
    for name, value in timed_options(space).items():
        if measured.get(name) != value:
            return f"it was measured with {name} {measured.get(name)}, not {value}"
    return ""


def timed_options(space: Space) -> dict[str, Any]:
    """The options of the model that decide how long it runs, as JSON has them."""
    options = space.full_options
    return json.loads(json.dumps({name: value for name, value in options.items() if name not in UNTIMED_MODEL_OPTIONS}))


def profile_command(space: Space, device: str) -> str:
    """The command line that measures this space as it is."""
    base = (space.base or space).name
    usual = timed_options(get_space(base)) if base in list_spaces() else {}
    changed = {name: value for name, value in timed_options(space).items() if usual.get(name) != value}
    flags = [f"--{name.replace('_', '-')} {changed.pop(name)}" for name in FLAGS if isinstance(changed.get(name), int)]
    rest = [f"--model {shlex.quote(json.dumps(changed))}"] if changed else []
    return " ".join([f"nasformer profile --space {shlex.quote(space.name)}", *flags, *rest, f"--device {device}"])


def in_words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {options[name]}" for name in FLAGS if name in options)


# Finalists: the best candidates, as predicted and as measured

BATCH = 5  # finalists measured at a time
LIMIT = 15  # in all
ROUNDS = 7
PROFILE_COPY, RECORD = Path("search") / "profile.json", Path("search") / "finalists.json"  # in a run folder


@dataclass(frozen=True)
class Finalist:
    """A candidate as predicted and as measured."""

    arch: dict[str, Any]
    latency_ms: float
    measured_latency_ms: float
    memory_bytes: int | None = None
    measured_memory_bytes: int | None = None

    def measured(self) -> dict[str, float]:
        """The measured latency and memory, by the names of the fields."""
        values = {"measured_latency_ms": self.measured_latency_ms, "measured_memory_bytes": self.measured_memory_bytes}
        return {name: value for name, value in values.items() if value is not None}

    def fits(self, budget: Budget) -> bool:
        latency = budget.max_latency_ms, self.measured_latency_ms
        memory = budget.max_memory_bytes, self.measured_memory_bytes
        return all(limit is None or value is None or value <= limit for limit, value in (latency, memory))


@dataclass(frozen=True)
class MachineSetup(Setup):
    """How nets were run and timed, and on which machine."""

    processor: str = ""
    gpu: str | None = None


@dataclass(frozen=True)
class PredictionError:
    """Prediction errors of the profile on nets that had no part in it."""

    nets: int = 0
    median_error: float | None = None
    p90_error: float | None = None


@dataclass(frozen=True)
class LatencyResult:
    """The finalists of a search, as result.json has them: how nets run, how well they are predicted, and each finalist.

    Args:
        note: Why the best by score does not win, or why nothing was measured.
    """

    setup: MachineSetup
    holdout: PredictionError
    finalists: list[Finalist]
    note: str

    def how(self) -> str:
        """Where and how nets run, and how well they are predicted."""
        setup, error = self.setup, self.holdout.median_error
        how = f"{setup.backend} on {setup.gpu or setup.processor}, batch {setup.batch_size}, threads {setup.threads}"
        return how if error is None else f"{how}; hold-out error of the prediction {error:.1%}"


@dataclass(frozen=True)
class Decision:
    """The arch that wins, the finalists that were measured, and a note where the best by score does not win."""

    arch: Arch
    finalists: list[Finalist] = field(default_factory=list)
    note: str = ""
    latency: LatencyResult | None = None

    @property
    def measured(self) -> dict[str, float]:
        """The measured latency and memory of the winner."""
        winner = next((finalist for finalist in self.finalists if finalist.arch == self.arch.to_dict()), None)
        return winner.measured() if winner else {}


def decide(
    profile: Profile, space: Space, ranking: Sequence[Arch], budget: Budget, record: Path | None = None
) -> Decision:
    """The first of the ranking that keeps the budget as measured; what was measured before is read from the record."""
    if reason := why_unmeasurable(profile):
        return Decision(ranking[0], [], f"latency is predicted, not measured: {reason}")
    finalists: list[Finalist] = []
    for start in range(0, min(LIMIT, len(ranking)), BATCH):
        finalists += measure_recorded(profile, space, ranking[start : start + BATCH], record)
        for number, finalist in enumerate(finalists):
            if finalist.fits(budget):
                note = f"as measured, the best {number} by score exceed {budget}; number {number + 1} wins"
                return Decision(ranking[number], finalists, note if number else "")
    fastest = min(range(len(finalists)), key=lambda number: finalists[number].measured_latency_ms)
    note = f"none of the best {len(finalists)} keeps {budget} as measured; the fastest of them is taken"
    return Decision(ranking[fastest], finalists, note)


def why_unmeasurable(profile: Profile) -> str:
    """Why this machine cannot measure what the profile predicts; empty where it can."""
    device = profile.setup.device
    if device == "cuda" and not torch.cuda.is_available():
        return "the profile is of a GPU, and there is none here"
    if not describe_machine(torch.device(device), profile.setup.backend).same_hardware(profile.machine):
        return f"the profile is of another machine ({profile.machine})"
    return ""


@dataclass(frozen=True)
class Record:
    """What was measured by which profile: RUN/search/finalists.json, by the arch as JSON."""

    profile: str = ""
    measured: dict[str, Finalist] = field(default_factory=dict)


def measure_recorded(profile: Profile, space: Space, archs: Sequence[Arch], path: Path | None) -> list[Finalist]:
    """Measures archs, or reads them from the record: so a killed or repeated search has the same winner."""
    record = from_json(Record, read_json(path), path) if path and path.exists() else Record()
    measured = dict(record.measured) if record.profile == profile.fingerprint else {}
    missing = [arch for arch in archs if arch.to_json() not in measured]
    fresh = measure(profile, space, missing, ROUNDS) if missing else []
    measured |= {arch.to_json(): finalist for arch, finalist in zip(missing, fresh, strict=True)}
    if path and missing:
        write_json(path, to_json(Record(profile.fingerprint, measured)))
    return [measured[arch.to_json()] for arch in archs]


def measure(profile: Profile, space: Space, archs: Sequence[Arch], rounds: int = ROUNDS) -> list[Finalist]:
    """Measures archs as the profile's nets were measured, scaled to the pace that the machine had then."""
    setup, device = profile.setup, torch.device(profile.setup.device)
    say(f"measuring {len(archs)} finalists on {device.type}, backend {setup.backend}")
    with cpu_threads(setup.threads):
        runner = make_runner(space, setup.backend, device, setup.batch_size, setup.threads)
        nets, reference = [TimedNet(runner.net(arch)) for arch in archs], runner.net(space.root.smallest())
        clock = make_clock(device, setup.threads)
        time_nets(nets, runner.images, clock, reference=reference, rounds=rounds, label="finalists")
        return [as_finalist(profile, space, arch, net, runner.images) for arch, net in zip(archs, nets, strict=True)]


@torch.inference_mode()
def as_finalist(profile: Profile, space: Space, arch: Arch, net: TimedNet, images: Any) -> Finalist:
    plan, ms = space.plan(arch), round(1000 * net.seconds(profile.pace), 4)
    if not profile.has_memory:
        return Finalist(arch.to_dict(), profile.latency_ms(plan), ms)
    peak = weight_bytes(plan) + nbytes(images) + peak_of(net.net, images)[0]
    return Finalist(arch.to_dict(), profile.latency_ms(plan), ms, profile.memory_bytes(plan), peak)


# The winner of a search, and the copy of the profile in its run folder


def profile_settings(profile: Profile | None) -> dict[str, str]:
    """For the journal of a search: with the costs of another profile it must not go on."""
    return {"profile": profile.fingerprint} if profile else {}


def keep_profile(profile: Profile | None, folder: Path | None) -> None:
    """Copy the profile into the run folder; the first one stays, as its journal does."""
    if profile and folder and not (folder / PROFILE_COPY).exists():
        profile.save(folder / PROFILE_COPY)


def kept_profile(space: Space, folder: Path) -> Space:
    """The space with the costs that the search of a run folder went by."""
    path = folder / PROFILE_COPY
    return replace(space, predicted=Profile.load(path).costs) if path.exists() else space


def choose_winner(
    profile: Profile | None, space: Space, result: SearchResult, budget: Budget, folder: Path | None
) -> Decision:
    """The winner of a search: its best, or with a profile the best that keeps the budget as measured."""
    if profile is None:
        return Decision(result.best.arch)
    ranking = [candidate.arch for candidate in result.ranking]
    decision = decide(profile, space, ranking, budget, folder / RECORD if folder else None)
    if decision.note:
        say(decision.note)
    setup = MachineSetup(**vars(profile.setup), processor=profile.machine.processor, gpu=profile.machine.gpu)
    errors = PredictionError(profile.holdout.nets, profile.holdout.median_error, profile.holdout.p90_error)
    return replace(decision, latency=LatencyResult(setup, errors, decision.finalists, decision.note))
