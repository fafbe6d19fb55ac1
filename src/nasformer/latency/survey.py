"""Measuring a space on this machine: which nets to run, and the profile that follows from their times.

Random nets are run whole and layer by layer, beside the smallest and the largest. The layers fill the table, the
wholes calibrate the sum, and other random nets, timed in the same rounds, tell how well nets are predicted.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from nasformer.families.segment import Segment
from nasformer.families.space import Space
from nasformer.latency.measure import (
    Runner,
    Timed,
    cpu_threads,
    describe_machine,
    layer_peaks,
    make_clock,
    make_runner,
    nbytes,
    peak_of,
    quartiles,
    time_all,
)
from nasformer.latency.profile import FLOAT, Entry, Profile, fit_laws, fit_line, key_of
from nasformer.space.arch import Arch
from nasformer.utils.progress import say

DRAWS = 8  # archs to choose from, each time the one with most that is new
TRIES = 100  # draws in a row that may be old acquaintances


def make_profile(
    space: Space,
    *,
    device: torch.device | str = "cpu",
    backend: str = "eager",
    batch_size: int = 1,
    threads: int | None = None,
    nets: int = 24,
    holdout: int = 30,
    rounds: int = 7,
    seed: int = 0,
    quiet: bool = False,
) -> Profile:
    """Measures the space; with the defaults that takes about two hundred runs of a net and each of its layers a round.

    Args:
        backend: How nets are run: eager, compile or onnxruntime.
        nets: How many nets fill the table and calibrate the sum.
        holdout: How many others it is tested on.
        threads: Of the CPU; None takes as many as torch does.
    """
    device, threads = torch.device(device), threads or torch.get_num_threads()
    with cpu_threads(threads):
        runner, clock = make_runner(space, backend, device, batch_size, threads), make_clock(device, threads)
        rng = random.Random(f"profile {seed}")
        chosen = covering_archs(space, nets, rng)
        others = other_archs(space, holdout, rng, chosen)
        if not quiet:
            say(f"building {len(chosen) + len(others)} nets of {space.name}")
        timed = [Timed(runner.whole(arch), runner.chain(arch)) for arch in chosen]
        tests = [Timed(runner.whole(arch)) for arch in others]
        label, pacemaker = "" if quiet else "profile", timed[0].net
        paces = time_all(
            timed + tests, runner.images, clock, pacemaker=pacemaker, rounds=rounds, seed=seed, label=label
        )
        setup = {"device": device.type, "backend": backend, "batch_size": batch_size, "threads": threads}
        setup |= {"precision": "fp32", "clock": clock.name, "rounds": rounds}
        setup |= {"pace_ms": [1000 * value for value in quartiles(paces)]}
        profile = Profile(
            space=space.name,
            options=space.full_options,
            setup=setup,
            machine=describe_machine(device, backend),
            table={},
            laws={},
            image_bytes=nbytes(runner.images) if isinstance(runner.images, torch.Tensor) else 0,
        )
        profile = filled(profile, space, chosen, timed, runner)
        return replace(profile, holdout=tested(profile, space, others, tests, runner))


def filled(profile: Profile, space: Space, archs: Sequence[Arch], nets: Sequence[Timed], runner: Runner) -> Profile:
    """The profile with its table, its laws and its calibration."""
    pace, plans = pace_of(profile), [space.plan(arch) for arch in archs]
    table = fill_table(plans, nets, pace, peaks_of(archs, plans, runner))
    profile = replace(profile, table=table, laws=fit_laws([segment for plan in plans for segment in plan], table))
    measured = [1000 * net.seconds(pace) for net in nets]
    overhead, scale = fit_line([profile.sum_ms(plan) for plan in plans], measured)
    return replace(profile, overhead_ms=overhead, scale=scale)


def tested(
    profile: Profile, space: Space, archs: Sequence[Arch], nets: Sequence[Timed], runner: Runner
) -> dict[str, Any]:
    """How well nets are predicted that had no part in the profile, and their times."""
    plans, measured = [space.plan(arch) for arch in archs], [1000 * net.seconds(pace_of(profile)) for net in nets]
    times = {arch.to_json(): ms for arch, ms in zip(archs, measured, strict=True)}
    memory = judge_memory(profile, runner, archs, plans)
    return {**judge(profile, plans, measured), **memory, "measured_ms": times}


def pace_of(profile: Profile) -> float:
    """The median pace in seconds: the level that all times are brought to."""
    return profile.setup["pace_ms"][1] / 1000


def covering_archs(space: Space, count: int, rng: random.Random) -> list[Arch]:
    """The smallest arch first, then the largest, then random ones that together have many kinds of layers."""
    archs = list(dict.fromkeys([space.root.smallest(), space.root.largest()]))
    seen = {key_of(segment) for arch in archs for segment in space.plan(arch)}
    while len(archs) < count:
        drawn = [arch for arch in (space.root.sample(rng) for _ in range(DRAWS)) if arch not in archs]
        if not drawn:
            break
        keys = [{key_of(segment) for segment in space.plan(arch)} for arch in drawn]
        best = max(range(len(drawn)), key=lambda place: len(keys[place] - seen))
        archs.append(drawn[best])
        seen |= keys[best]
    return archs


def other_archs(space: Space, count: int, rng: random.Random, taken: Sequence[Arch]) -> list[Arch]:
    """Random archs that are not among those taken."""
    found: dict[Arch, None] = {}
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        arch = space.root.sample(rng)
        if arch not in taken:
            found[arch] = None
    return list(found)


def fill_table(
    plans: Sequence[Sequence[Segment]], nets: Sequence[Timed], pace: float, peaks: Mapping[str, int]
) -> dict[str, Entry]:
    """Every kind with the median of its times, wherever and whenever it ran."""
    times: dict[str, list[float]] = {}
    for plan, net in zip(plans, nets, strict=True):
        for segment, found in zip(plan, net.layers(pace), strict=True):
            times.setdefault(key_of(segment), []).extend(1000 * seconds for seconds in found)
    table = {}
    for key, found in times.items():
        low, middle, high = quartiles(found)
        table[key] = Entry(middle, low, high, len(found), peaks.get(key))
    return table


@torch.inference_mode()
def peaks_of(archs: Sequence[Arch], plans: Sequence[Sequence[Segment]], runner: Runner) -> dict[str, int]:
    """The peak memory of every kind of layer; nothing where torch does not run them."""
    peaks: dict[str, int] = {}
    if not isinstance(runner.images, torch.Tensor):
        return peaks
    for arch, plan in zip(archs, plans, strict=True):
        if any(key_of(segment) not in peaks for segment in plan):
            found = layer_peaks(runner.chain(arch), runner.images)
            peaks |= {key_of(segment): peak for segment, peak in zip(plan, found, strict=True)}
    return peaks


def judge(profile: Profile, plans: Sequence[Sequence[Segment]], measured: Sequence[float]) -> dict[str, Any]:
    """How far predictions are from what was measured, relative to it."""
    if not plans:
        return {"nets": 0}
    errors = [abs(profile.latency_ms(plan) / ms - 1) for plan, ms in zip(plans, measured, strict=True)]
    plain = [abs(profile.sum_ms(plan) / ms - 1) for plan, ms in zip(plans, measured, strict=True)]
    return {
        "nets": len(plans),
        "median_error": median(errors),
        "p90_error": ninetieth(errors),
        "median_error_uncalibrated": median(plain),
        "from_table": sum(profile.coverage(plan) for plan in plans) / len(plans),
        "fastest_ms": min(measured),
        "slowest_ms": max(measured),
    }


@torch.inference_mode()
def judge_memory(
    profile: Profile, runner: Runner, archs: Sequence[Arch], plans: Sequence[Sequence[Segment]]
) -> dict[str, float]:
    """The largest error of the memory that nets need beside their weights, whose size is known."""
    if not profile.knows_memory or not plans:
        return {}
    errors = []
    for arch, plan in zip(archs, plans, strict=True):
        weights = FLOAT * sum(segment.cost().params for segment in plan) + profile.image_bytes
        peak, _ = peak_of(runner.whole(arch), runner.images)
        errors.append(abs((profile.memory_bytes(plan) - weights) / peak - 1))
    return {"median_memory_error": median(errors), "p90_memory_error": ninetieth(errors)}


def ninetieth(values: Sequence[float]) -> float:
    """The value that nine of ten do not exceed."""
    return sorted(values)[min(len(values) - 1, int(0.9 * len(values)))]
