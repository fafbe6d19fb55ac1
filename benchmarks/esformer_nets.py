"""Collects the nets that searches by Entropic Score and LogSynflow found, beside random nets of equal cost.

python benchmarks/esformer_nets.py --searched runs/s0-0 runs/s0-1 runs/s0-2 \
    --alone entropic=runs/entropic-alone logsynflow=runs/logsynflow-alone --models models.json --out esformer_nets.json

The first searched net gets rivals: random archs whose parameters and MACs are both within 5 % of its own, and with
`--timm` models of timm. `models.json` is what `same_recipe.py` trains; the record has the winners of all runs with
their costs and scores, and which patterns of the paper's nets the searched ones show (`nasformer patterns`).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import nasformer
from nasformer import Arch, Space
from nasformer.report.patterns import find_patterns, read_winners
from nasformer.utils.files import write_json
from record import benchmark_parser, save_record

TRIES = 1_000_000
COSTS = ("params", "macs")


def winner(run: str) -> dict[str, Any]:
    """The winner of a run, with its space, costs and scores, and how many candidates the search had."""
    result = json.loads((Path(run) / "result.json").read_text())
    found = {name: value for name, value in result["winner"].items() if name not in ("name", "position_macs_literal")}
    return {"space": result["space"], "candidates": result["candidates"], "note": result["note"], **found}


def random_nets(space: Space, like: Arch, count: int, within: float, seed: int) -> list[Arch]:
    """Random archs whose parameters and MACs are both within a share of another's."""
    rng, wanted, found = Random(f"equal cost {seed}"), space.costs(like), list[Arch]()
    for _ in range(TRIES):
        arch = space.sample(rng)
        costs = space.costs(arch)
        if all(abs(costs[name] / wanted[name] - 1) <= within for name in COSTS) and arch not in found:
            found.append(arch)
        if len(found) == count:
            return found
    raise SystemExit(f"{len(found)} of {count} archs within {within:.0%} of {wanted} in {TRIES:,} tries")


def patterns(runs: list[str], space: str) -> list[dict[str, Any]]:
    """Which patterns of the paper's nets the winners in this space show, beside random archs in the budget."""
    folders = [Path(run) for run in runs if winner(run)["space"] == space]
    found, budget, archs = read_winners(folders)
    return [asdict(verdict) for verdict in find_patterns(found, archs, budget).verdicts]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--searched", nargs="+", required=True, help="run folders of cyclic searches")
    parser.add_argument("--alone", nargs="*", default=[], help="NAME=FOLDER of searches by one score")
    parser.add_argument("--random", type=int, default=3)
    parser.add_argument("--within", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timm", nargs="*", default=[], help="models of timm to train beside them")
    parser.add_argument("--models", required=True, help="write the models to train here")
    args = parser.parse_args()
    winners = {Path(run).name: winner(run) for run in args.searched}
    alone = {f"{name} alone": winner(run) for name, _, run in (text.partition("=") for text in args.alone)}
    searched = next(iter(winners.values()))
    space = nasformer.get_space(searched["space"])
    rivals = random_nets(space, space.arch(searched["arch"]), args.random, args.within, args.seed)
    nets = {"searched": searched["arch"], **{name: row["arch"] for name, row in alone.items()}}
    nets |= {f"random {number}": arch.to_dict() for number, arch in enumerate(rivals, start=1)}
    models: dict[str, Any] = {name: {"space": space.name, "arch": arch} for name, arch in nets.items()}
    models |= {name: {"timm": name} for name in args.timm}
    write_json(Path(args.models), models)
    costs = {name: {cost: space.costs(space.arch(arch))[cost] for cost in COSTS} for name, arch in nets.items()}
    found = {
        "winners": winners | alone,
        "models": models,
        "costs": costs,
        "patterns": patterns(args.searched, space.name),
    }
    save_record("esformer_nets", vars(args), found, args.out)


if __name__ == "__main__":
    main()
