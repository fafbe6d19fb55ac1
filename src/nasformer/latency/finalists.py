"""Finalists: the best candidates of a search are measured before one of them wins, since predictions can be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nasformer.latency.measure import (
    TimedNet,
    describe_machine,
    make_clock,
    make_runner,
    nbytes,
    peak_of,
    time_nets,
)
from nasformer.latency.profile import Profile, Setup, weight_bytes
from nasformer.models.space import Space
from nasformer.search.run import SearchResult
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.utils.device import cpu_threads
from nasformer.utils.files import read_json, write_json
from nasformer.utils.progress import say
from nasformer.utils.schema import from_json, to_json

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
    """How well the profile predicted nets that had no part in it."""

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
    """The archs measured; a killed or repeated search finds them in the record, and so the same winner."""
    record = from_json(Record, read_json(path), path) if path and path.exists() else Record()
    measured = dict(record.measured) if record.profile == profile.fingerprint else {}
    missing = [arch for arch in archs if arch.to_json() not in measured]
    fresh = measure(profile, space, missing, ROUNDS) if missing else []
    measured |= {arch.to_json(): finalist for arch, finalist in zip(missing, fresh, strict=True)}
    if path and missing:
        write_json(path, to_json(Record(profile.fingerprint, measured)))
    return [measured[arch.to_json()] for arch in archs]


def measure(profile: Profile, space: Space, archs: Sequence[Arch], rounds: int = ROUNDS) -> list[Finalist]:
    """The archs as the profile's nets were measured, at the pace that the machine had then."""
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


# What a search does with a profile


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
