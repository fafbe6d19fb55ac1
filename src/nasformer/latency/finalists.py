"""Predictions are not promises: the best candidates of a search are measured before one of them wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nasformer.families.space import Space
from nasformer.latency.measure import (
    Timed,
    cpu_threads,
    describe_machine,
    make_clock,
    make_runner,
    nbytes,
    peak_of,
    same_machine,
    time_all,
)
from nasformer.latency.profile import FLOAT, Profile
from nasformer.search.budget import Budget
from nasformer.search.run import SearchResult
from nasformer.space.arch import Arch
from nasformer.utils.files import read_json, write_json
from nasformer.utils.progress import say

TOGETHER = 5  # finalists measured at a time
MOST = 15  # in all
ROUNDS = 7


@dataclass(frozen=True)
class Finalist:
    """A candidate as predicted and as measured."""

    arch: dict[str, Any]
    latency_ms: float
    measured_latency_ms: float
    memory_bytes: int | None = None
    measured_memory_bytes: int | None = None

    def fits(self, budget: Budget) -> bool:
        time = budget.max_latency_ms, self.measured_latency_ms
        memory = budget.max_memory_bytes, self.measured_memory_bytes
        return all(most is None or found is None or found <= most for most, found in (time, memory))


@dataclass(frozen=True)
class Verdict:
    """Who wins, who was measured, and what there is to say about it."""

    arch: Arch
    finalists: list[Finalist]
    note: str

    def to_dict(self, profile: Profile) -> dict[str, Any]:
        setup = {**profile.setup, **{name: profile.machine.get(name) for name in ("processor", "gpu")}}
        error = {name: profile.holdout.get(name) for name in ("nets", "median_error", "p90_error")}
        rows = [asdict(one) for one in self.finalists]
        return {"setup": setup, "holdout": error, "finalists": rows, "note": self.note}

    def measured(self) -> dict[str, float]:
        """What the winner was measured to need."""
        own = [one for one in self.finalists if one.arch == self.arch.to_dict()]
        found = {name: getattr(one, name) for one in own for name in ("measured_latency_ms", "measured_memory_bytes")}
        return {name: value for name, value in found.items() if value is not None}


def how_measured(told: Mapping[str, Any]) -> str:
    """Where and how nets run, and how well they are predicted; `told` is what `Verdict.to_dict` gave."""
    setup, error = told["setup"], told["holdout"]["median_error"]
    where = setup.get("gpu") or setup["processor"]
    how = f"{setup['backend']} on {where}, batch {setup['batch_size']}, threads {setup['threads']}"
    return how if error is None else f"{how}; hold-out error of the prediction {error:.1%}"


def decide(
    profile: Profile, space: Space, ranking: Sequence[Arch], budget: Budget, record: Path | None = None
) -> Verdict:
    """The first of the ranking that keeps the budget as measured; what was measured before is read from the record."""
    if why := unmeasurable(profile):
        return Verdict(ranking[0], [], f"latency is predicted, not measured: {why}")
    finalists: list[Finalist] = []
    for start in range(0, min(MOST, len(ranking)), TOGETHER):
        finalists += recorded(profile, space, ranking[start : start + TOGETHER], record)
        for place, one in enumerate(finalists):
            if one.fits(budget):
                note = f"as measured, the best {place} by score exceed {budget}; number {place + 1} wins"
                return Verdict(ranking[place], finalists, note if place else "")
    place = min(range(len(finalists)), key=lambda number: finalists[number].measured_latency_ms)
    note = f"none of the best {len(finalists)} keeps {budget} as measured; the fastest of them is taken"
    return Verdict(ranking[place], finalists, note)


def unmeasurable(profile: Profile) -> str:
    """Why this machine cannot measure what the profile predicts; nothing where it can."""
    wanted = profile.setup["device"]
    if wanted == "cuda" and not torch.cuda.is_available():
        return "the profile is of a GPU, and there is none here"
    here = describe_machine(torch.device(wanted), profile.setup["backend"])
    if not same_machine(here, dict(profile.machine)):
        names = {name: profile.machine.get(name) for name in ("gpu", "processor", "cores")}
        return f"the profile is of another machine ({', '.join(f'{k} {v}' for k, v in names.items() if v)})"
    return ""


def recorded(profile: Profile, space: Space, archs: Sequence[Arch], record: Path | None) -> list[Finalist]:
    """The archs measured; a killed or repeated search finds them in the record, and so the same winner."""
    old = read_json(record) if record and record.exists() else {}
    known = old.get("measured", {}) if old.get("profile") == profile.fingerprint else {}
    missing = [arch for arch in archs if arch.to_json() not in known]
    fresh = measure(profile, space, missing) if missing else []
    known |= {arch.to_json(): asdict(one) for arch, one in zip(missing, fresh, strict=True)}
    if record and missing:
        write_json(record, {"profile": profile.fingerprint, "measured": known})
    return [Finalist(**known[arch.to_json()]) for arch in archs]


def measure(profile: Profile, space: Space, archs: Sequence[Arch], rounds: int = ROUNDS) -> list[Finalist]:
    """The archs as the profile's nets were measured, at the pace that the machine had then."""
    setup = profile.setup
    device, threads = torch.device(setup["device"]), setup["threads"]
    say(f"measuring {len(archs)} finalists on {device.type}, backend {setup['backend']}")
    with cpu_threads(threads):
        runner = make_runner(space, setup["backend"], device, setup["batch_size"], threads)
        nets = [Timed(runner.whole(arch)) for arch in archs]
        pacemaker = runner.whole(space.root.smallest())
        time_all(nets, runner.images, make_clock(device, threads), pacemaker=pacemaker, rounds=rounds)
        pace = setup["pace_ms"][1] / 1000
        return [finalist(profile, space, arch, net, pace, runner.images) for arch, net in zip(archs, nets, strict=True)]


@torch.inference_mode()
def finalist(profile: Profile, space: Space, arch: Arch, net: Timed, pace: float, images: Any) -> Finalist:
    plan, ms = space.plan(arch), round(1000 * net.seconds(pace), 4)
    if not profile.knows_memory:
        return Finalist(arch.to_dict(), profile.latency_ms(plan), ms)
    weights = FLOAT * sum(segment.cost().params for segment in plan)
    peak = weights + nbytes(images) + peak_of(net.net, images)[0]
    return Finalist(arch.to_dict(), profile.latency_ms(plan), ms, profile.memory_bytes(plan), peak)


# ----------------------------------------------------------------------------------------------------------------------
# What a search does with a profile: tells the journal, keeps a copy in the run folder, and measures the finalists.
# ----------------------------------------------------------------------------------------------------------------------

COPY, RECORD = Path("search") / "profile.json", Path("search") / "finalists.json"


def profile_settings(profile: Profile | None) -> dict[str, str]:
    """For the journal of a search: with the costs of another profile it must not go on."""
    return {"profile": profile.fingerprint} if profile else {}


def keep_profile(profile: Profile | None, folder: Path | None) -> None:
    """A copy in the run folder, so that the run says by what it went; the first one stays, as its journal does."""
    if profile and folder and not (folder / COPY).exists():
        profile.save(folder / COPY)


def kept_profile(space: Space, folder: Path) -> Space:
    """The space with the costs that the search of a run folder went by."""
    path = folder / COPY
    return replace(space, predicted=Profile.load(path).costs) if path.exists() else space


def measured_winner(
    profile: Profile | None, space: Space, result: SearchResult, budget: Budget, folder: Path | None
) -> tuple[Arch, dict[str, float], dict[str, Any]]:
    """The winner, what it was measured to need, and all about it for the result; without a profile just the winner."""
    if profile is None:
        return result.best.arch, {}, {}
    ranking = [candidate.arch for candidate in result.ranking]
    verdict = decide(profile, space, ranking, budget, folder / RECORD if folder else None)
    if verdict.note:
        say(verdict.note)
    return verdict.arch, verdict.measured(), {"latency": verdict.to_dict(profile)}
