"""Racing against full evaluation: is the winner the same, and on what share of the images?

    nasformer train --config digits --out runs/digits
    python benchmarks/racing.py runs/digits --generations 8 --out racing.json

Both searches have the same supernet, space, budget and seed; every arch is run on all held-out images once and its
outcomes are kept, so that the comparison costs little, while the images that a race has looked at are counted.
`resolution` is the median of |t| between candidates of the full search and its winner, over all held-out images: below
about 2 the held-out images cannot tell most candidates from the winner, however many of them are looked at.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from nasformer.data.options import DataOptions
from nasformer.results.folder import RunFolder
from nasformer.runs.data import load_batches, normalize_as
from nasformer.runs.options import UNTRAINED
from nasformer.search.options import BudgetOptions
from nasformer.search.run import SearchResult, search
from nasformer.space.arch import Arch
from nasformer.supernet.storage import load_supernet
from nasformer.train.evaluate import SubnetEvaluator
from nasformer.train.racing import Race
from nasformer.utils.device import World, choose_device
from record import benchmark_parser, save_record


class Contest:
    """A supernet, its held-out images, and searches of it."""

    def __init__(self, run: str, args: argparse.Namespace) -> None:
        folder, device = RunFolder(run), choose_device(args.device)
        config, self.args = folder.read_config(), args
        self.supernet = load_supernet(folder.supernet).to(device).eval()
        self.space, made = self.supernet.space, self.supernet.space.full_options
        options = DataOptions(data=config.data, holdout=config.holdout, seed=config.seed, device=args.device)
        batches = load_batches(options, UNTRAINED, World(), device, made["img_size"], made["in_chans"])
        normalize_as(batches, folder)
        self.images, self.budget = batches.held_out, BudgetOptions(args.min_params, args.max_params).budget()
        subnets, everything = SubnetEvaluator(self.supernet, batches), torch.arange(self.images)
        self.outcomes = lru_cache(None)(lambda arch: subnets.outcomes(arch, everything))

    def search(self, seed: int, race: Race | None) -> SearchResult:
        options = {"population": self.args.population, "generations": self.args.generations}
        observe = race.observe if race else None
        settings: dict[str, Any] = {"options": options, "budget": self.budget, "seed": seed, "on_candidate": observe}
        return search(self.space, race or self.judge, self.space.costs, **settings)

    def judge(self, arch: Arch) -> dict[str, float]:
        accuracy, loss = self.outcomes(arch).double().mean(1).tolist()
        return {"accuracy": accuracy, "loss": loss}

    def race(self, seed: int, confidence: float, parents: int) -> Race:
        def part(arch: Arch, numbers: Tensor) -> Tensor:
            return self.outcomes(arch)[:, numbers]

        return Race(part, self.images, parents, seed, confidence)

    def resolution(self, found: SearchResult) -> float:
        best = self.outcomes(found.best.arch)[0]
        differences = [self.outcomes(one.arch)[0] - best for one in found.candidates if one.arch != found.best.arch]
        return median(abs(float(d.mean() / (d.std() / len(d) ** 0.5).clamp(min=1e-9))) for d in differences)


def compare(contest: Contest, seeds: int, confidence: float, parents: int, full: list[SearchResult]) -> dict[str, Any]:
    same, shares, gaps = 0, list[float](), list[float]()
    for seed in range(seeds):
        race = contest.race(seed, confidence, parents)
        found, expected = contest.search(seed, race), full[seed]
        same += found.best.arch == expected.best.arch
        shares.append(race.seen / contest.images / len(found.candidates))
        gaps.append(100 * (found.best.scores["accuracy"] - expected.best.scores["accuracy"]))
    figures = {"same winner": same, "as accurate or better": sum(gap >= 0 for gap in gaps), "seeds": seeds}
    return {**figures, "share of images": fmean(shares), "points against full": fmean(gaps), "lowest": min(gaps)}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("runs", nargs="+", help="run folders with a trained supernet")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--population", type=int, default=30)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--confidence", type=float, nargs="+", default=[2.0, 1.0])
    parser.add_argument("--parents", type=int, nargs="+", default=[10, 1], help="whom to race: the last of so many")
    parser.add_argument("--min-params", default=None)
    parser.add_argument("--max-params", default=None)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    results = dict[str, Any]()
    for run in args.runs:
        contest = Contest(run, args)
        full = [contest.search(seed, None) for seed in range(args.seeds)]
        spread = [one.scores["accuracy"] for found in full for one in found.candidates]
        about = {"images": contest.images, "resolution": median(contest.resolution(found) for found in full)}
        results[Path(run).name] = {**about, "accuracy": [min(spread), median(spread), max(spread)]}
        print(Path(run).name, results[Path(run).name], flush=True)
        for parents in args.parents:
            for confidence in args.confidence:
                name = f"against the last of {parents} at {confidence:g} standard errors"
                results[Path(run).name][name] = compare(contest, args.seeds, confidence, parents, full)
                print(f"{name}: {results[Path(run).name][name]}", flush=True)
                save_record("racing", vars(args), results, args.out, quiet=True)


if __name__ == "__main__":
    main()
