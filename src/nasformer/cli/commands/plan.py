"""The command that looks ahead: plan."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from nasformer.cli.commands.common import chosen_space, print_json
from nasformer.cli.config import PlanCommand
from nasformer.errors import UserError
from nasformer.runs import plan as preflight
from nasformer.runs.beside import check_baselines
from nasformer.runs.run import Run
from nasformer.train.distributed import World
from nasformer.utils.units import format_quantity

LABELS = {"params": "parameters", "macs": "MACs", "latency_ms": "latency, ms", "memory_bytes": "memory, bytes"}
STAGES = {"train": "supernet training", "search": "search", "retrain": "retraining from scratch"}


def plan(command: PlanCommand, as_json: bool) -> None:
    if command.draws < 1 or command.steps < 1:
        raise UserError("draws and steps must be 1 or more")
    found = look_ahead(command)
    print_json(found) if as_json else print_plan(found)


def look_ahead(command: PlanCommand) -> dict[str, Any]:
    """All that can be known before a run, without its folder."""
    space, budget, recipe = chosen_space(command), command.budget(), command.train
    usual = space.full_options["img_size"]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), command, space, recipe, World(), command.img_size, command.in_chans, usual)
        run.use_profile(command, command.search.objectives)
        surveyed = preflight.survey_space(run.space, budget, command.draws, command.seed)
        run.check_search(command.search, budget)
        costs = check_baselines(run, command.baseline)
        times = preflight.time_stages(run, recipe, command.search, budget, command.steps, costs)
    candidates = sum(one.get("candidates", 0) for one in [times["search"], *times["baselines"]])
    example, params = run.space.arch(surveyed["example"]), [cost["params"] for cost in costs.values()]
    disk = preflight.disk_needed(run.space, recipe, candidates, Path(command.out or "."), example, params)
    found = {"name": space.name, "data": command.data, "space": surveyed, "time": times, "disk": disk}
    return {**found, "warnings": preflight.warnings_of(found)}


def print_plan(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    space, disk = found["space"], found["disk"]
    share, time = space["share"], found["time"]
    print(f"{found['name']} on {found['data']}: {float(space['archs']):.3g} architectures, budget {space['budget']}")
    part = f"{share['fitting'] / share['draws']:.2%} of {share['draws']} random ones fit"
    print(f"satisfiable: {part} (95 % interval {share['low']:.2%} to {share['high']:.2%})")
    table = Table()
    for column in ("", "smallest", "median", "largest", "that fit: smallest", "median", "largest"):
        table.add_column(column, justify="left" if not column else "right")
    for name, ends in space["space"].items():
        values = [*ends.values(), *space["within"][name].values()]
        table.add_row(LABELS[name], *(format_quantity(value) for value in values))
    Console().print(table)
    lines = [(label, time[stage]) for stage, label in STAGES.items()]
    lines += [(one["name"], one) for one in time["baselines"]]
    width = max(len(label) for label, _ in lines)
    for label, one in lines:
        unit = "candidate" if "candidates" in one else "step"
        each = f"{one[f'{unit}s']:,} {unit}s of {one[f'seconds_per_{unit}']:.3g} s"
        print(f"{label:{width}} {in_hours(one['seconds']):>9}   {each} on {time['device']}")
    if time["note"]:
        print(time["note"])
    kept = ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in disk.items() if name not in ("total", "free"))
    print(f"disk: {disk['total'] / 1e6:,.1f} MB ({kept}), free {disk['free'] / 1e9:,.1f} GB")
    for warning in found["warnings"]:
        print(f"warning: {warning}")


def in_hours(seconds: float) -> str:
    """A time as people say it.

    >>> in_hours(40), in_hours(600), in_hours(9000)
    ('40 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
