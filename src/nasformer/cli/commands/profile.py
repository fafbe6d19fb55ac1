"""The command that measures this machine: profile."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from nasformer.cli.tables import print_json, print_table
from nasformer.errors import UserError
from nasformer.families.options import SpaceOptions

if TYPE_CHECKING:
    from nasformer.latency.profile import Profile

SHOWN = 12  # kinds of layers in the printed table


@dataclass
class ProfileCommand(SpaceOptions):
    """Measure this machine: the latency and memory of a space's layers, and how well they predict whole nets."""

    main: ClassVar = ("space", "img_size", "device", "backend", "batch_size", "threads", "out")
    example: ClassVar = "nasformer profile --space autoformer-tiny --device cpu"

    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    backend: Literal["eager", "compile", "onnxruntime"] = "eager"
    """how nets are run; compile: layer by layer, one graph for each kind"""
    batch_size: int = 1
    """images at a time"""
    threads: int | None = None
    """threads of the CPU; None: one, which is the stable way"""
    nets: int = 24
    """nets that fill the table and calibrate the sum of their layers"""
    holdout: int = 30
    """other nets, on which the prediction is tested"""
    rounds: int = 7
    """how often each net is visited; more for a busy machine"""
    seed: int = 0
    """seed of everything random"""
    out: str = ""
    """the file to write; none: profiles/SPACE-SIZEpx-DEVICE-BACKEND-bBATCH.json"""

    def __post_init__(self) -> None:
        for name, least in {"batch_size": 1, "nets": 3, "holdout": 1, "rounds": 1}.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; give {least} or more")
        if self.threads is not None and self.threads < 1:
            raise UserError(f"threads is {self.threads}; give 1 or more")


def profile(options: ProfileCommand, as_json: bool) -> None:
    from nasformer.latency.lookup import default_path
    from nasformer.latency.survey import make_profile
    from nasformer.runs.run import asked_space
    from nasformer.utils.device import choose_device

    space, device = asked_space(options), choose_device(options.device)
    path = Path(options.out or default_path(space, device.type, options.backend, options.batch_size))
    found = make_profile(
        space,
        device=device,
        backend=options.backend,
        batch_size=options.batch_size,
        threads=options.threads,
        nets=options.nets,
        holdout=options.holdout,
        rounds=options.rounds,
        seed=options.seed,
    )
    found.save(path)
    if as_json:
        return print_json({"file": str(path), **found.to_dict()})
    print_profile(found)
    return print(f"profile: {path}   next: nasformer search --max-latency 5ms ... (add --latency-profile {path})")


def print_profile(found: Profile) -> None:
    setup, test = found.setup, found.holdout
    where = found.machine.get("gpu") or found.machine["processor"]
    how = f"{setup['backend']}, batch {setup['batch_size']}, {setup['precision']}"
    title = f"{found.space} on {where}: {how}, threads {setup['threads']}, {setup['clock']}"
    names = short_names(list(found.table))
    longest = sorted(found.table.items(), key=lambda item: -item[1].ms)[:SHOWN]
    rows = [
        [names[key], f"{entry.ms:.4g}", f"{entry.low:.4g} to {entry.high:.4g}", str(entry.runs)]
        + ["–" if entry.bytes is None else f"{entry.bytes / 1e6:.2f}"]
        for key, entry in longest
    ]
    print_table(title, ("layer", "median ms", "quartiles", "runs", "peak MB"), rows)
    low, middle, high = setup["pace_ms"]
    print(f"{len(found.table)} kinds of layers measured in running nets, {len(longest)} shown")
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
    split = {
        key: (key.partition("(")[0], re.findall(r"\w+=(?:\([^)]*\)|[^,()]+)", key.partition("(")[2])) for key in keys
    }
    short = {}
    for key, (layer, options) in split.items():
        others = [set(values) for name, values in split.values() if name == layer]
        common = set.intersection(*others) if len(others) > 1 else set()
        short[key] = " ".join([layer, *(option for option in options if option not in common)])
    return short
