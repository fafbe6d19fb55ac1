"""The command that measures this machine: profile."""

from __future__ import annotations

import re
from pathlib import Path

from nasformer.cli.commands.common import chosen_space, print_json
from nasformer.cli.config import ProfileCommand
from nasformer.latency.lookup import check_replaceable, default_path, suggested_latency
from nasformer.latency.measure import describe_machine
from nasformer.latency.profile import MAX_ERROR, Profile
from nasformer.latency.profiler import make_profile
from nasformer.utils.device import choose_device
from nasformer.utils.progress import say

ROWS = 12  # kinds of layers in the printed table


def profile(command: ProfileCommand, as_json: bool) -> None:
    space, device = chosen_space(command), choose_device(command.device)
    settings = (device.type, command.backend, command.batch_size, command.threads)
    path = Path(command.out or default_path(space, *settings))
    check_replaceable(path, space, describe_machine(device, command.backend), *settings)
    measured = make_profile(
        space,
        device=device,
        backend=command.backend,
        batch_size=command.batch_size,
        threads=command.threads,
        nets=command.nets,
        holdout=command.holdout,
        rounds=command.rounds,
        seed=command.seed,
    )
    measured.save(path)
    if measured.is_inaccurate:
        say(
            f"warning: on other nets the median error is {measured.holdout.median_error:.0%}, more than "
            f"{MAX_ERROR:.0%}: budgets use this profile only where --latency-profile names it. Measure again when the "
            "machine is quieter, with --threads 1 or more --rounds"
        )
    if as_json:
        return print_json({"file": str(path), **measured.to_dict()})
    print_profile(measured)
    latency = suggested_latency(measured) or "TIME"
    print(f"profile: {path}   next: nasformer search --max-latency {latency} ... (add --latency-profile {path})")
    return None


def print_profile(measured: Profile) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    setup, test = measured.setup, measured.holdout
    where = measured.machine.gpu or measured.machine.processor
    how = f"{setup.backend}, batch {setup.batch_size}, {setup.precision}"
    title = f"{measured.space} on {where}: {how}, threads {setup.threads}, {setup.clock}"
    table = Table(title=escape(title))  # a space may have brackets in its name
    for column in ("layer", "median ms", "quartiles", "runs", "peak MB"):
        table.add_column(column, justify="left" if column == "layer" else "right", overflow="fold")
    names = short_names(list(measured.table))
    longest = sorted(measured.table.items(), key=lambda item: -item[1].ms)
    for key, entry in longest[:ROWS]:
        peak = "–" if entry.bytes is None else f"{entry.bytes / 1e6:.2f}"
        table.add_row(names[key], f"{entry.ms:.4g}", f"{entry.low:.4g} to {entry.high:.4g}", str(entry.runs), peak)
    Console().print(table)
    low, middle, high = setup.pace_ms
    print(f"{len(measured.table)} kinds of layers measured in running nets, {min(ROWS, len(longest))} shown")
    print(f"pace: {middle:.4g} ms, half of the time between {low:.4g} and {high:.4g}")
    print(f"a net takes {measured.overhead_ms:.3g} ms + {measured.scale:.4f} x the sum of its layers")
    if test.nets:
        print(
            f"hold-out of {test.nets} other nets ({test.fastest_ms:.4g} to {test.slowest_ms:.4g} ms): "
            f"median error {test.median_error:.1%}, 90th percentile {test.p90_error:.1%}; "
            f"{test.from_table:.0%} of their layers are in the table"
        )
    if test.median_memory_error is not None:
        print(f"peak memory: median error {test.median_memory_error:.1%}, 90th {test.p90_memory_error:.1%}")


def short_names(keys: list[str]) -> dict[str, str]:
    """The keys of a table without what all layers of a class have in common.

    >>> short_names(["Norm(dim=8, eps=1)", "Norm(dim=16, eps=1)"])
    {'Norm(dim=8, eps=1)': 'Norm dim=8', 'Norm(dim=16, eps=1)': 'Norm dim=16'}
    """
    parsed = {
        key: (key.partition("(")[0], re.findall(r"\w+=(?:\([^)]*\)|[^,()]+)", key.partition("(")[2])) for key in keys
    }
    short = {}
    for key, (layer, options) in parsed.items():
        others = [set(found) for name, found in parsed.values() if name == layer]
        common = set.intersection(*others) if len(others) > 1 else set()
        short[key] = " ".join([layer, *(option for option in options if option not in common)])
    return short
