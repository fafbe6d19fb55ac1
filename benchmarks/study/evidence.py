"""Assembles the evidence from the records: evidence.json of the package, and the leading table of docs/results.md.

python benchmarks/study/evidence.py            # writes both
python benchmarks/study/evidence.py --check    # fails where one of them is not what the records say

A record is read by the benchmark that wrote it; those of `study.py` say all of it themselves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nasformer.results.verdict import Evidence, Gain

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "records"
PACKAGED = ROOT / "src" / "nasformer" / "results" / "evidence.json"
PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- evidence: written by benchmarks/study/evidence.py -->", "<!-- end of the evidence -->"
Record = dict[str, Any]


def gain(differences: Sequence[float]) -> Gain:
    """Of one difference a seed, in points."""
    spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
    return Gain(round(statistics.fmean(differences), 2), round(spread, 2), len(differences))


def pretrained_cut(record: Record, name: str) -> Iterator[Evidence]:
    """One line for each share of the MACs; times are of stages that shared the GPU with two others."""
    runs, settings = record["results"]["runs"], record["settings"]
    for share in settings["budgets"]:
        over = {kind: paired(runs, f"{share} searched", f"{share} {kind}") for kind in ("random", "uniform")}
        stages = [run["times"]["full"] + run["times"]["supernet"] for run in runs]
        last = [run["times"]["search"] / len(settings["budgets"]) + run["jobs"]["100 full"]["seconds"] for run in runs]
        seconds = statistics.fmean(stages) + statistics.fmean(last)
        yield Evidence(
            "pretrained",
            f"{settings['net'].split(':')[1]}, cut",
            "Flowers-102",
            1020,
            224,
            f"{share} % of the MACs",
            name,
            over["random"],
            over["uniform"],
            "the same net, cut uniformly",
            round(seconds / 60, 1),
        )


def paired(runs: Sequence[Record], winner: str, rivals: str) -> Gain | None:
    """The winner above the mean of its rivals, seed by seed, on the test images."""
    differences = []
    for run in runs:
        others = [job["test"] for job_name, job in run["jobs"].items() if job_name.startswith(rivals) and "test" in job]
        if others:
            differences.append(100 * (run["jobs"][winner]["test"] - statistics.fmean(others)))
    return gain(differences) if differences else None


def demo_seeds(record: Record, name: str) -> Iterator[Evidence]:
    gains = [seed["gain"] for seed in record["results"]["seeds"]]
    yield Evidence(
        "supernet", "AutoFormer, inherited weights", "digits", 1005, 8, "28 to 30 K parameters", name, gain(gains)
    )


SAME_RECIPE = {
    "same_recipe-h200-flowers.json": ("supernet", "AutoFormer", "Flowers-102", 1020, 64, "6 M parameters"),
    "same_recipe-h200-cifar100.json": ("supernet", "AutoFormer", "CIFAR-100", 50_000, 32, "6 M parameters"),
    "same_recipe-h200-trionet.json": ("supernet", "TrioNet", "CIFAR-10", 50_000, 32, "80 M MACs"),
    "same_recipe-h200-seeing.json": ("training-free", "Entropic Score", "Imagenette", 9_469, 64, "1.2 M parameters"),
}
"""What the records of same_recipe.py do not say themselves."""


def same_recipe(record: Record, name: str) -> Iterator[Evidence]:
    """The winner's gain over the mean random net and over the best other one, seed by seed."""
    if name not in SAME_RECIPE:
        return
    runs = record["results"]["runs"]
    accuracies = {model: {run["seed"]: run["accuracy"] for run in runs[model]} for model in runs if runs[model]}
    winner, *rivals = accuracies
    random = [rival for rival in rivals if rival.startswith("random")]
    handmade = [rival for rival in rivals if "timm" in record["results"]["models"][rival] or rival.startswith("pure")]
    best = max(handmade, key=lambda rival: statistics.fmean(accuracies[rival].values()))
    road, *facts = SAME_RECIPE[name]
    over = [above(accuracies, winner, group) for group in (random, [best])]
    yield Evidence(road, *facts, name, *over, best)  # type: ignore[arg-type]


def above(accuracies: dict[str, dict[int, float]], winner: str, rivals: list[str]) -> Gain | None:
    seeds = accuracies[winner].keys() & set.intersection(*(set(accuracies[rival]) for rival in rivals))
    mean = {seed: statistics.fmean(accuracies[rival][seed] for rival in rivals) for seed in seeds}
    return gain([100 * (accuracies[winner][seed] - mean[seed]) for seed in sorted(seeds)]) if seeds else None


def study(record: Record, name: str) -> Iterator[Evidence]:
    gains = {key: Gain(**value) for key, value in record["results"]["gains"].items()}
    yield Evidence(**record["settings"]["evidence"], record=name, **gains, minutes=record["results"]["minutes"])


READERS: dict[str, Callable[[Record, str], Iterator[Evidence]]] = {
    "pretrained_cut": pretrained_cut,
    "demo_seeds": demo_seeds,
    "same_recipe": same_recipe,
    "study": study,
}


def assemble() -> list[Evidence]:
    found = []
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text())
        if read := READERS.get(record.get("benchmark")):
            found += read(record, path.name)
    order = ("pretrained", "supernet", "training-free")
    return sorted(found, key=lambda item: (order.index(item.road), item.method, item.data))


def table(evidence: Sequence[Evidence]) -> str:
    rows: list[list[str]] = [
        ["method", "data", "budget", "over random nets", "over a hand-made net", "GPU minutes", "record"],
        ["---"] * 7,
    ]
    rows += [
        [
            item.method,
            f"{item.data}, {item.images:,} images, {item.img_size} px",
            item.budget,
            str(item.over_random or "–"),
            f"{item.over_handmade}, {item.handmade}" if item.over_handmade else "–",
            f"{item.minutes:g}" if item.minutes else "–",
            f"`{item.record.removesuffix('.json')}`",
        ]
        for item in evidence
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page_with(text: str, evidence: Sequence[Evidence]) -> str:
    """The page with its table between the two comments."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{table(evidence)}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    evidence = assemble()
    packaged = json.dumps([asdict(item) for item in evidence], indent=1) + "\n"
    wanted = {PACKAGED: packaged, PAGE: page_with(PAGE.read_text(), evidence)}
    if args.check:
        stale = [str(path.relative_to(ROOT)) for path, text in wanted.items() if path.read_text() != text]
        print(f"stale: {', '.join(stale)}; run benchmarks/study/evidence.py" if stale else "as the records say")
        return 1 if stale else 0
    for path, text in wanted.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
