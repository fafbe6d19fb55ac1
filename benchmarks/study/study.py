"""Runs a study: a YAML file names commands for each seed and where their figures are; the outcome is a record.

python benchmarks/study/study.py benchmarks/study/autoformer-cifar100.yaml --data cifar100.npz --work DIR --jobs 3

    evidence: {road: supernet, method: AutoFormer, data: CIFAR-100, images: 45000, img_size: 32, budget: 6 M parameters,
               handmade: deit_tiny_patch16_224}
    seeds: 3
    steps:            # of every seed, in turn; {seed}, {data} and {work}, a folder of the seed, are filled in
      - nasformer run --config autoformer-cifar100 --data {data} --seed {seed} --finish none --out {work}/run
      - ...
    rows:             # figures of a seed: a file of {work} and the keys in its JSON; the mean over all that match
      searched: trained.json results summary winner accuracy
      random: trained.json results summary 'random *' accuracy
      handmade: trained.json results summary deit_tiny_patch16_224 accuracy

Steps that are done are not done again: the same command goes on where it was stopped. `--jobs` seeds run at a time, on
one GPU side by side; with `--executor ray` as tasks on the workers of a cluster, as many at a time as there is room for
(`--jobs` is the most then), with the folder of the study and the images at the same paths on every node. The record has
every figure, mean and standard deviation of each row, the gains of `searched` over `random` and `handmade`, paired over
seeds, with the p-value of a paired t-test, and the minutes spent; a table and a figure lie beside it.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from nasformer.runs.options import ExecutorOptions
from nasformer.runs.ray_pool import RayPool, result_of
from nasformer.utils.schema import read_yaml
from record import save_record

Figures = dict[str, float]
RIVALS = {"random": "over_random", "handmade": "over_handmade"}


@dataclass(frozen=True)
class Study:
    """The contents of a YAML file."""

    evidence: dict[str, Any]
    seeds: int
    steps: list[str]
    rows: dict[str, str]


@dataclass
class Seed:
    """One repetition of a study: its folder, and the commands that fill it."""

    study: Study
    number: int
    folder: Path
    data: str

    def run(self) -> float:
        """Does what is not done yet; returns the seconds that all steps took, now or before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return sum(self.step(command) for command in self.study.steps)

    def step(self, command: str) -> float:
        words = shlex.split(command.format(seed=self.number, data=self.data, work=self.folder))
        done = self.folder / f"{hashlib.sha256(shlex.join(words).encode()).hexdigest()[:12]}.done"
        if done.exists():
            return float(done.read_text())
        start = time.perf_counter()
        with (self.folder / "log.txt").open("a") as log:
            log.write(f"$ {shlex.join(words)}\n")
            log.flush()
            words = [sys.executable if words[0] == "python" else words[0], *words[1:]]
            subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=True)
        seconds = time.perf_counter() - start
        done.write_text(str(seconds))
        print(f"seed {self.number}, {seconds:.0f} s: {command}", flush=True)
        return seconds

    def figures(self) -> Figures:
        return {row: self.figure(place) for row, place in self.study.rows.items()}

    def figure(self, place: str) -> float:
        file, *keys = shlex.split(place)
        return statistics.fmean(find(json.loads((self.folder / file).read_text()), keys))


class SeedJob:
    """What workers of a cluster do: whole seeds."""

    def open(self, device: str) -> Callable[[Seed], float]:
        return Seed.run


def run_seeds(seeds: Sequence[Seed], jobs: int | None, options: ExecutorOptions) -> list[float]:
    """The seconds that each seed took; side by side on this machine, or on the workers of a cluster."""
    if options.executor == "local":
        with ThreadPoolExecutor(jobs or 1) as pool:
            return list(pool.map(Seed.run, seeds))
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[Seed.__module__])  # this file is no package of the workers'
    with closing(RayPool(SeedJob(), options)) as workers:
        return [result_of(outcome) for outcome in workers.map(seeds)]


def find(tree: Any, keys: Sequence[str]) -> Iterator[float]:
    """All numbers under the keys, which may be patterns.

    >>> list(find({"random 1": {"top1": 0.5}, "random 2": {"top1": 0.7}, "winner": {}}, ["random*", "top1"]))
    [0.5, 0.7]
    """
    if not keys:
        yield float(tree)
        return
    for key in tree:
        if fnmatch.fnmatchcase(key, keys[0]):
            yield from find(tree[key], keys[1:])


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def gains(figures: Sequence[Figures]) -> dict[str, dict[str, Any]]:
    """Of the searched net over its rivals, in points, seed by seed."""
    found = {}
    for rival, name in RIVALS.items():
        if rival in figures[0]:
            differences = [100 * (seed["searched"] - seed[rival]) for seed in figures]
            found[name] = {**spread(differences), "seeds": len(differences)}
    return found


def p_values(figures: Sequence[Figures]) -> dict[str, float]:
    """Of paired t-tests, one-sided: how likely such gains are where there are none."""
    from scipy.stats import ttest_rel

    if len(figures) < 2:
        return {}
    searched = [seed["searched"] for seed in figures]
    rivals = [rival for rival in RIVALS if rival in figures[0]]
    tests = {rival: ttest_rel(searched, [seed[rival] for seed in figures], alternative="greater") for rival in rivals}
    return {rival: float(test.pvalue) for rival, test in tests.items()}


def table(figures: Sequence[Figures]) -> str:
    lines = ["| | mean ± standard deviation | seeds |", "| --- | --- | --- |"]
    for row in figures[0]:
        values = spread([100 * seed[row] for seed in figures])
        lines.append(f"| {row} | {values['mean']:.2f} ± {values['std']:.2f} | {len(figures)} |")
    return "\n".join(lines)


def draw(figures: Sequence[Figures], title: str, path: Path) -> None:
    """Every seed as a point, every mean as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fig, axes = pyplot.subplots(figsize=(1.5 + 1.2 * len(figures[0]), 3.2), layout="constrained")
    for place, row in enumerate(figures[0]):
        values = [100 * seed[row] for seed in figures]
        axes.scatter([place] * len(values), values, color="C0", alpha=0.6)
        axes.hlines(statistics.fmean(values), place - 0.25, place + 0.25, color="C0")
    axes.set_xticks(range(len(figures[0])), figures[0])
    axes.set(ylabel="test accuracy (%)", title=title)
    fig.savefig(path, dpi=120)
    pyplot.close(fig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, default=Path("study"))
    parser.add_argument("--seeds", type=int, help="fewer or more than the study has")
    parser.add_argument("--jobs", type=int, help="seeds at a time; 1 by default, on a cluster as many as fit")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--ray-address")
    parser.add_argument("--cpus-per-trial", type=float, default=1.0, help="of a seed, on a cluster")
    parser.add_argument("--gpus-per-trial", type=float, default=0.0, help="of a seed, on a cluster")
    parser.add_argument("--out", type=Path, help="the record; table and figure are written beside it")
    args = parser.parse_args()
    study = Study(**read_yaml(args.study))
    folders = [args.work / args.study.stem / str(seed) for seed in range(args.seeds or study.seeds)]
    seeds = [Seed(study, number, folder, args.data) for number, folder in enumerate(folders)]
    resources = args.ray_address, args.cpus_per_trial, args.gpus_per_trial, args.jobs
    seconds = run_seeds(seeds, args.jobs, ExecutorOptions(args.executor, *resources))
    figures = [seed.figures() for seed in seeds]
    print(table(figures))
    results = {
        "seeds": figures,
        "rows": {row: spread([seed[row] for seed in figures]) for row in figures[0]},
        "gains": gains(figures),
        "p": p_values(figures),
        "minutes": round(statistics.fmean(seconds) / 60, 1),
    }
    settings = {"study": args.study.name, "steps": study.steps, "jobs": args.jobs, "evidence": study.evidence}
    save_record("study", settings, results, str(args.out) if args.out else None, quiet=True)
    if args.out:
        args.out.with_suffix(".md").write_text(table(figures) + "\n")
        draw(figures, args.study.stem, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
