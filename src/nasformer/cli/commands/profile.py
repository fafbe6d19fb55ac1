"""The command that measures this machine: profile."""

from __future__ import annotations

import re
from pathlib import Path

from nasformer.cli.commands.common import chosen_space, print_json
from nasformer.cli.config import ProfileCommand
from nasformer.latency.lookup import default_path
from nasformer.latency.profile import Profile
from nasformer.latency.survey import make_profile
from nasformer.utils.device import choose_device

SHOWN = 12  # kinds of layers in the printed table


def profile(command: ProfileCommand, as_json: bool) -> None:
    space, device = chosen_space(command), choose_device(command.device)
    path = Path(command.out or default_path(space, device.type, command.backend, command.batch_size))
    found = make_profile(
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
    found.save(path)
    if as_json:
        return print_json({"file": str(path), **found.to_dict()})
    print_profile(found)
    print(f"profile: {path}   next: nasformer search --max-latency 5ms ... (add --latency-profile {path})")
    return None


def print_profile(found: Profile) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    setup, test = found.setup, found.holdout
    where = found.machine.get("gpu") or found.machine["processor"]
    how = f"{setup['backend']}, batch {setup['batch_size']}, {setup['precision']}"
    title = f"{found.space} on {where}: {how}, threads {setup['threads']}, {setup['clock']}"
    table = Table(title=escape(title))  # a space may have brackets in its name
    for column in ("layer", "median ms", "quartiles", "runs", "peak MB"):
        table.add_column(column, justify="left" if column == "layer" else "right", overflow="fold")
    names = short_names(list(found.table))
    longest = sorted(found.table.items(), key=lambda item: -item[1].ms)
    for key, one in longest[:SHOWN]:
        peak = "–" if one.bytes is None else f"{one.bytes / 1e6:.2f}"
        table.add_row(names[key], f"{one.ms:.4g}", f"{one.low:.4g} to {one.high:.4g}", str(one.runs), peak)
    Console().print(table)
    low, middle, high = setup["pace_ms"]
    print(f"{len(found.table)} kinds of layers measured in running nets, {min(SHOWN, len(longest))} shown")
    print(f"pace: {middle:.4g} ms, half of the time between {low:.4g} and {high:.4g}")
    print(f"a net takes {found.overhead_ms:.3g} ms + {found.scale:.4f} x the sum of its layers")
    print(
        f"hold-out of {test['nets']} other nets ({test['fastest_ms']:.4g} to {test['slowest_ms']:.4g} ms): "
        f"median error {test['median_error']:.1%}, 90th percentile {test['p90_error']:.1%}; "
        f"{test['from_table']:.0%} of their layers are in the table"
    )
    if "median_memory_error" in test:
        print(f"peak memory: median error {test['median_memory_error']:.1%}, 90th {test['p90_memory_error']:.1%}")


def short_names(keys: list[str]) -> dict[str, str]:
    """The keys of a table without what all layers of a class have in common.

    >>> short_names(["Norm(dim=8, eps=1)", "Norm(dim=16, eps=1)"])
    {'Norm(dim=8, eps=1)': 'Norm dim=8', 'Norm(dim=16, eps=1)': 'Norm dim=16'}
    """
    told = {
        key: (key.partition("(")[0], re.findall(r"\w+=(?:\([^)]*\)|[^,()]+)", key.partition("(")[2])) for key in keys
    }
    short = {}
    for key, (layer, options) in told.items():
        others = [set(found) for name, found in told.values() if name == layer]
        common = set.intersection(*others) if len(others) > 1 else set()
        short[key] = " ".join([layer, *(option for option in options if option not in common)])
    return short
