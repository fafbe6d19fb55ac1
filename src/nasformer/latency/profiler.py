"""Profiling a space on this machine: which nets to run, and the profile that follows from their times.

Random nets are run whole and layer by layer, beside the smallest and the largest. The layers fill the table, the
whole nets calibrate the sum, and other random nets, timed in the same rounds, tell how well nets are predicted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import torch

from nasformer.families.base import Segment
from nasformer.families.space import Space
from nasformer.latency.measure import (
    Clock,
    Runner,
    TimedNet,
    cpu_threads,
    describe_machine,
    layer_peaks,
    make_clock,
    make_runner,
    nbytes,
    peak_of,
    quartiles,
    time_nets,
    undisturbed,
    visit,
)
from nasformer.latency.profile import Entry, HoldOut, Profile, Setup, fit_laws, fit_line, key_of, weight_bytes
from nasformer.space.arch import Arch
from nasformer.utils.progress import in_hours, say

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
        holdout: How many others it is tested on.
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
        label, reference = "" if quiet else "profile", timed[0].net
        if not quiet:
            seconds = rounds * round_seconds(timed, len(tests), runner.images, clock)
            say(f"timing them and the layers of {len(archs)} of them in {rounds} rounds: about {in_hours(seconds)}")
        paces = time_nets(
            timed + tests, runner.images, clock, reference=reference, rounds=rounds, seed=seed, label=label
        )
        low, middle, high = quartiles(paces)
        pace_ms = (1000 * low, 1000 * middle, 1000 * high)
        profile = Profile(
            space=space.name,
            options=space.full_options | ({} if space.model.task == "classify" else {"task": space.model.task}),
            setup=Setup(device.type, backend, batch_size, threads, "fp32", clock.name, rounds, pace_ms),
            machine=describe_machine(device, backend),
            table={},
            laws={},
            image_bytes=nbytes(runner.images) if isinstance(runner.images, torch.Tensor) else 0,
        )
        profile = with_table(profile, space, archs, timed, runner)
        return replace(profile, holdout=hold_out(profile, space, others, tests, runner))


def round_seconds(timed: Sequence[TimedNet], tests: int, images: object, clock: Clock) -> float:
    """How long a round takes, by a visit of the smallest and of the largest net, which have layers to time as well."""
    start = time.perf_counter()
    with undisturbed():
        for net in timed[:2]:
            visit(net, images, clock, timed[0].net)
    each = (time.perf_counter() - start) / len(timed[:2])
    return each * (len(timed) + tests / 2)


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
    profile: Profile, space: Space, archs: Sequence[Arch], nets: Sequence[TimedNet], runner: Runner
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
def peaks_of(archs: Sequence[Arch], plans: Sequence[Plan], runner: Runner) -> dict[str, int]:
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
    profile: Profile, space: Space, archs: Sequence[Arch], nets: Sequence[TimedNet], runner: Runner
) -> HoldOut:
    """How far predictions are from what was measured, of nets that had no part in the profile."""
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
def memory_errors(profile: Profile, runner: Runner, archs: Sequence[Arch], plans: Sequence[Plan]) -> list[float]:
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
