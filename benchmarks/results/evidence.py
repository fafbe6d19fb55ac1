"""What methods were measured to be worth: lines of the leading table, and evidence.json of the package.

A record is read by what wrote it; those of studies say all of it themselves.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import outcome
from nasformer.results.verdict import Evidence, Gain
from nasformer.utils.schema import from_json
from records import BLOCKS, RECORDS, ROOT, Block, Record, sources, table, text_of

STUDIES = ROOT / "benchmarks" / "study"


def gain(differences: Sequence[float]) -> Gain:
    """Of one difference a seed, in points."""
    spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
    return Gain(round(statistics.fmean(differences), 3), round(spread, 3), len(differences))


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
    # Without a supernet the searched net's training is all that a GPU is needed for; of a supernet no time is recorded.
    seconds = statistics.fmean(run["seconds"] for run in runs[winner])
    minutes = round(seconds / 60, 1) if road == "training-free" else None
    yield Evidence(road, *facts, name, *over, best, minutes)  # type: ignore[arg-type]


def above(accuracies: dict[str, dict[int, float]], winner: str, rivals: list[str]) -> Gain | None:
    seeds = accuracies[winner].keys() & set.intersection(*(set(accuracies[rival]) for rival in rivals))
    mean = {seed: statistics.fmean(accuracies[rival][seed] for rival in rivals) for seed in seeds}
    return gain([100 * (accuracies[winner][seed] - mean[seed]) for seed in sorted(seeds)]) if seeds else None


def study(record: Record, name: str) -> Iterator[Evidence]:
    yield from from_json(list[Evidence], record["results"]["evidence"], name)  # type: ignore[arg-type]


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


def leading_table() -> str:
    head = [
        "method",
        "data",
        "budget",
        "points over random nets",
        "points over a hand-made net",
        "GPU minutes",
        "record",
    ]
    rows = [
        [
            item.method,
            f"{item.data}, {item.images:,} images, {item.img_size} px",
            item.budget,
            str(item.over_random or "–"),
            f"{item.over_handmade}, {item.handmade}" if item.over_handmade else "–",
            f"{item.minutes:g}" if item.minutes else "–",
            f"`{item.record.removesuffix('.json')}`",
        ]
        for item in assemble()
    ]
    return table(head, *rows)


BLOCKS["when-search-pays"] = Block(leading_table, (), sourced=False)


# Studies: their records hold their own YAML, by which they are shown.


def studies() -> set[str]:
    """The names of their records."""
    return {path.name for path in RECORDS.glob("study-*.json")}


def all_studies() -> str:
    """Every study that has a record, with its table, the largest first; then what the others ask and would take."""
    parts, left = [], []
    asked = {path: outcome.read_study(path) for path in STUDIES.glob("*.yaml")}
    for path, study in sorted(asked.items(), key=lambda item: (-item[1].gpu_minutes, item[0])):
        record = RECORDS / f"study-{path.stem}.json"
        if record.exists():
            parts.append(shown(record))
        else:
            time = (
                f"{study.gpu_minutes:g} minutes on an H200"
                if study.gpu_minutes
                else "no GPU; the head of the file says how long on a CPU"
            )
            left.append(
                [study.about, f"`python benchmarks/study/study.py benchmarks/study/{path.name} --data SETS`", time]
            )
    if left:
        parts += ["### Not measured yet", table(["question", "command", "estimated time"], *left)]
    return "\n\n".join(parts)


def shown(path: Path) -> str:
    record = json.loads(path.read_text(encoding="utf-8"))
    asked = from_json(outcome.Study, record["settings"]["study"], path)
    left = unfinished(asked, record["results"])
    note = f"\n\n*Not finished: {left}.*" if left else ""
    return f"### {asked.about}\n\n{outcome.table(asked, record['results'])}\n\n{sources([path.stem], [record])}{note}"


def unfinished(asked: outcome.Study, results: Record) -> str:
    """The variants that lack seeds, in words.

    >>> study = outcome.Study("A or B?", seeds=3, steps=[], figures={}, variants={"A": {}, "B": {}, "C": {}})
    >>> unfinished(study, {"cells": {"B, seed 2": {}, "C, seed 0": {}, "C, seed 1": {}, "C, seed 2": {}}})
    'A has no seed yet, B 1 of 3 seeds'
    """
    parts = list[str]()
    for variant in asked.variants:
        beginning = f"{variant}, seed " if variant else "seed "
        done = sum(name.startswith(beginning) for name in results["cells"])
        if done < asked.seeds:
            count = f"{done} of {asked.seeds} seeds" if done else "no seed yet"
            parts.append(f"{variant or 'it'} {'' if parts else 'has '}{count}")
    return ", ".join(parts)


BLOCKS["studies"] = Block(all_studies, (), sourced=False)


@text_of("study-segmentation-camvid")
def camvid_in_short(record: Record) -> str:
    """For the page on segmentation: mIoU of every backbone so far, the best first."""
    asked = from_json(outcome.Study, record["settings"]["study"], Path("study-segmentation-camvid"))
    rows = sorted(record["results"]["rows"].items(), key=lambda row: -row[1]["mIoU"]["mean"])
    return ", ".join(f"{name} {outcome.mean_and_spread(asked, 'mIoU', row['mIoU'])}" for name, row in rows)


@text_of("study-vqa-shapes")
def vqa_shapes_in_short(record: Record) -> str:
    """For the page on questions: VQA accuracy with the images and without."""
    asked = from_json(outcome.Study, record["settings"]["study"], Path("study-vqa-shapes"))
    (row,) = record["results"]["rows"].values()
    return ", ".join(f"{name} {outcome.mean_and_spread(asked, name, row[name])}" for name in asked.figures)
