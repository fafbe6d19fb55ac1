"""Picks nets to train beside the winner of a search, of its cost: random ones, and ones whose blocks have one operator.
Writes them for `same_recipe.py`, with the accuracy on the test images that each inherits from the supernet.

python benchmarks/rivals.py --models models.json --by params --random 5 --out runs/cifar100 --data cifar100.npz

`--by` is a cost of the space: params or macs, or latency_ms where a limit on it is among the options. `--other
NAME=RUN` adds the best candidate of equal cost that another search of the space has judged, such as one for another
task. The other options are those of `nasformer search`, by which the run's supernet and its data are found again.
`--timm NAME NAME={...}` adds models of timm, perhaps with options as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from nasformer.cli.main import find_command, make_parser
from nasformer.models.space import Space
from nasformer.results.contents import read_run
from nasformer.runs.base import open_run
from nasformer.runs.search import open_supernet
from nasformer.space.arch import Arch
from nasformer.train.evaluate import SubnetEvaluator
from nasformer.utils.files import write_json

TRIES = 200_000


def of_equal_cost(space: Space, target: float, by: str, within: float, rng: Random, operator: str = "") -> Arch:
    """A random arch within a share of the cost; with an operator, one whose blocks have no other."""
    for _ in range(TRIES):
        arch = only(space, operator, rng) if operator else space.sample(rng)
        if abs(space.costs(arch)[by] / target - 1) <= within:
            return arch
    raise SystemExit(f"no arch{' of ' + operator if operator else ''} within {within:.0%} of {target:,.0f} {by}")


def only(space: Space, operator: str, rng: Random) -> Arch:
    """A random arch whose blocks all have one operator, in a space of stages of blocks that choose one."""
    arch = space.sample(rng).to_dict()
    for name, stage in space.root.fields.items():
        genes = stage.fields["blocks"].item.options[operator]  # type: ignore[attr-defined]
        arch[name]["blocks"] = [{operator: genes.sample(rng)} for _ in arch[name]["blocks"]]
    return space.arch(arch)


def rivals(space: Space, winner: Arch, args: argparse.Namespace) -> Iterator[tuple[str, Arch]]:
    target, rng = space.costs(winner)[args.by], Random(f"rivals {args.seed}")
    yield "winner", winner
    for number in range(args.random):
        yield f"random {number + 1}", of_equal_cost(space, target, args.by, args.within, rng)
    for name, _, run in (text.partition("=") for text in args.other):
        yield name, best_of_other(space, Path(run), target, args.by, args.within)
    for operator in args.pure:
        yield f"pure {operator}", of_equal_cost(space, target, args.by, args.within, rng, operator)


def best_of_other(space: Space, run: Path, wanted: float, by: str, within: float) -> Arch:
    """The best of another search's candidates within a share of the cost; where none is, the nearest one."""
    found = read_run(run)
    judged = {space.arch(one.arch.to_dict()): one.scores[found.score] for one in found.judged}
    off = {arch: abs(space.costs(arch)[by] / wanted - 1) for arch in judged}
    near = [arch for arch in judged if off[arch] <= within]
    return max(near, key=judged.__getitem__) if near else min(off, key=off.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, help="write them here")
    parser.add_argument("--by", default="params", help="the cost that is equal")
    parser.add_argument("--within", type=float, default=0.02)
    parser.add_argument("--random", type=int, default=3)
    parser.add_argument("--other", nargs="*", default=[], help="NAME=RUN: the best of that run's search of equal cost")
    parser.add_argument("--pure", nargs="*", default=[], help="operators, such as conv local axial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timm", nargs="*", default=[], help="models of timm to add, perhaps NAME={...}")
    args, rest = parser.parse_known_args()
    command = make_parser(find_command("search")).parse([*rest, "--seed", str(args.seed)]).options
    winner = json.loads((Path(command.out) / "result.json").read_text())["winner"]["arch"]
    models: dict[str, Any] = {}
    with open_run(command, "supernet") as run:
        run.use_profile(command)
        supernet = open_supernet(run, command.supernet)
        evaluator, space = SubnetEvaluator(supernet, run.batches), supernet.space
        shape = ("img_size", "in_chans", "num_classes")
        options = {name: value for name, value in space.options.items() if name not in (*shape, "drop_path_rate")}
        for name, arch in rivals(space, space.arch(winner), args):
            models[name] = {"space": space.name, "arch": arch.to_dict(), "options": options, **space.costs(arch)}
            models[name]["inherited"] = evaluator.accuracy(arch, "test")
            print(
                f"{name:12} {models[name][args.by]:,} {args.by}, inherits {models[name]['inherited']:.4f}", flush=True
            )
    for name, _, options in (text.partition("=") for text in args.timm):
        models[name] = {"timm": name, "options": json.loads(options or "{}")}
    write_json(Path(args.models), models)


if __name__ == "__main__":
    main()
