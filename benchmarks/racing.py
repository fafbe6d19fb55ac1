"""Racing against full evaluation: is the winner the same, and on what share of the images?

    nasformer train --config digits --out runs/digits
    python benchmarks/racing.py runs/digits --generations 8 --out racing.json

Both searches have the same supernet, space, budget and seed. Every arch of a full search is run on all held-out images
once, and its outcomes are kept, also for the races; the images that a race has looked at are counted. Outcomes are
written to a file in the run folder, so that a benchmark can be killed. `resolution` is the median of |t| between
candidates of the full search and its winner, over all held-out images: below about 2 the held-out images cannot tell
most candidates from the winner, however many of them are looked at.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from nasformer.data.options import DataOptions
from nasformer.results.folder import RunFolder
from nasformer.runs.base import load_batches, normalize_as
from nasformer.runs.options import UNTRAINED
from nasformer.search.options import BudgetOptions, Racing
from nasformer.search.run import SearchResult, search
from nasformer.space.arch import Arch
from nasformer.supernet.storage import load_supernet
from nasformer.train.evaluate import SubnetEvaluator
from nasformer.train.racing import CONFIDENCE, Race
from nasformer.utils.device import World, choose_device
from nasformer.utils.files import read_tensors, save_tensors
from record import benchmark_parser, save_record

KEPT = 200
"""New archs after which the outcomes are written."""


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
        self.subnets, self.file = SubnetEvaluator(self.supernet, batches), folder.path / "outcomes.safetensors"
        self.kept = read_tensors(self.file) if self.file.exists() else dict[str, Tensor]()
        self.saved = len(self.kept)

    def search(self, seed: int, race: Race | None) -> SearchResult:
        options = {"population": self.args.population, "generations": self.args.generations}
        observe = race.observe if race else None
        settings: dict[str, Any] = {"options": options, "budget": self.budget, "seed": seed, "on_candidate": observe}
        return search(self.space, race or self.judge, self.space.costs, **settings)

    def full(self, seed: int) -> SearchResult:
        """A search that judges all candidates on all images."""
        found = self.search(seed, None)
        self.save()
        print(f"seed {seed} in full: accuracy {found.best.scores['accuracy']:.4f}", flush=True)
        return found

    def judge(self, arch: Arch) -> dict[str, float]:
        accuracy, loss = self.outcomes(arch).double().mean(1).tolist()
        return {"accuracy": accuracy, "loss": loss}

    def outcomes(self, arch: Arch) -> Tensor:
        """Those on all images, run once."""
        if (name := arch.to_json()) not in self.kept:
            self.kept[name] = self.subnets.outcomes(arch, torch.arange(self.images))
            if len(self.kept) - self.saved >= KEPT:
                self.save()
        return self.kept[name]

    def save(self) -> None:
        if len(self.kept) > self.saved:
            save_tensors(self.file, self.kept)
            self.saved = len(self.kept)

    def race(self, seed: int, racing: Racing) -> Race:
        def part(arch: Arch, numbers: Tensor) -> Tensor:
            kept = self.kept.get(arch.to_json())
            return self.subnets.outcomes(arch, numbers) if kept is None else kept[:, numbers]

        return Race(part, self.images, self.space.root.encode, self.args.parents, seed, CONFIDENCE[racing])

    def resolution(self, found: SearchResult) -> float:
        best = self.outcomes(found.best.arch)[0]
        differences = [self.outcomes(one.arch)[0] - best for one in found.candidates if one.arch != found.best.arch]
        return median(abs(float(d.mean() / (d.std() / len(d) ** 0.5).clamp(min=1e-9))) for d in differences)


def compare(contest: Contest, racing: Racing, full: list[SearchResult]) -> dict[str, Any]:
    same, shares, gaps = 0, list[float](), list[float]()
    for seed, expected in enumerate(full):
        race = contest.race(seed, racing)
        found = contest.search(seed, race)
        same += found.best.arch == expected.best.arch
        shares.append(race.seen / contest.images / len(found.candidates))
        gaps.append(100 * (contest.judge(found.best.arch)["accuracy"] - expected.best.scores["accuracy"]))
    figures = {"same winner": same, "as accurate or better": sum(gap >= 0 for gap in gaps), "seeds": len(full)}
    return {**figures, "share of images": fmean(shares), "points against full": fmean(gaps), "lowest": min(gaps)}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("runs", nargs="+", help="run folders with a trained supernet")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--population", type=int, default=30)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--parents", type=int, default=10, help="how many breed")
    parser.add_argument("--racing", choices=list(CONFIDENCE), nargs="+", default=list(CONFIDENCE))
    parser.add_argument("--min-params", default=None)
    parser.add_argument("--max-params", default=None)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    results = dict[str, Any]()
    for run in args.runs:
        contest = Contest(run, args)
        full = [contest.full(seed) for seed in range(args.seeds)]
        spread = [one.scores["accuracy"] for found in full for one in found.candidates]
        about = {"images": contest.images, "resolution": median(contest.resolution(found) for found in full)}
        results[Path(run).name] = {**about, "accuracy": [min(spread), median(spread), max(spread)]}
        print(Path(run).name, results[Path(run).name], flush=True)
        for racing in args.racing:
            results[Path(run).name][racing] = compare(contest, racing, full)
            print(f"{racing}: {results[Path(run).name][racing]}", flush=True)
            save_record("racing", vars(args), results, args.out, quiet=True)


if __name__ == "__main__":
    main()
