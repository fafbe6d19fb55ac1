"""A run folder as the evolution of a space would leave it: real dimensions, invented errors."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nasformer.models.registry import get_space
from nasformer.space.dimensions import dimensions
from nasformer.utils.files import write_json

SAMPLES = 200


def dimension(values: Sequence[Any], luck: random.Random, level: float, last: bool) -> dict[str, Any]:
    """One with a slope by luck; it shifts by a step where that is steep."""
    counts = [round(SAMPLES / len(values) * luck.uniform(0.7, 1.3), 3) for _ in values]
    found: dict[str, Any] = {"values": list(values), "counts": counts, "shift": 0, "step": None, "next": list(values)}
    if len(values) < 2:
        nothing = dict.fromkeys(("slope", "stderr", "intercept"))
        return {**found, **nothing, "et": [level] * len(values), "notice": "left alone: a single value"}
    step, slope = values[1] - values[0], luck.gauss(0, 0.4)
    middle = sum(values) / len(values)
    et = [level + slope * (value - middle) / step + luck.gauss(0, 0.1) for value in values]
    line = {"slope": slope, "stderr": abs(luck.gauss(0.1, 0.03)), "intercept": level - slope * middle / step}
    shift = 0 if last or abs(slope) < 0.2 else -1 if slope > 0 else 1
    clipped = values[0] + shift * step <= 0
    shift, notice = (0, "kept at 1 or more") if clipped else (shift, "")
    going = [value + shift * step for value in values]
    return {**found, **line, "et": et, "shift": shift, "step": step, "next": going, "notice": notice}


def steps_of(name: str, count: int, asked: int) -> list[dict[str, Any]]:
    """The records of spaces that get better and better."""
    luck, steps = random.Random(name), []
    choices: Mapping[str, Sequence[Any]] = {key: one.values for key, one in dimensions(get_space(name).root).items()}
    for number in range(count):
        errors = sorted(30.0 * 0.8**number * luck.uniform(0.8, 1.2) for _ in range(SAMPLES))
        expected, top = sum(errors) / SAMPLES, sum(errors[:10]) / 10
        level = (expected + top) / 2
        found = {key: dimension(values, luck, level, number == asked) for key, values in choices.items()}
        steps.append(
            {
                "space": name if not number else f"{name}[step={number}]",
                "cardinality": 2 * 10**12,
                "samples": SAMPLES,
                "error": {"expected": expected, "top": top, "et": level},
                "errors": errors,
                "dimensions": found,
                "carried": {"whole": 134, "part": 26, "fresh": 13, "inexact": []} if number else None,
            }
        )
        choices = {key: one["next"] for key, one in found.items()}
    return steps


def write_evolution(folder: Path, name: str = "s3-micro", count: int = 3, asked: int | None = None) -> dict[str, Any]:
    """Fills the folder; of the steps that were asked for, `count` - 1 are taken."""
    asked = count - 1 if asked is None else asked
    options = {"steps": asked, "samples": SAMPLES, "top": 10, "min_samples": 10}
    content = {"data": "digits", "budget": "1.4M <= macs <= 1.8M", "options": options}
    content["steps"] = steps_of(name, count, asked)
    config = {"space": name, "data": "digits", "seed": 0, "budget": {"max_macs": "1.8M"}, "evolve": options}
    versions = {"nasformer": "0.1.0", "torch": "2.11.0"}
    write_json(folder / "config.json", {**config, "train": {"epochs": 10}, "versions": versions})
    write_json(folder / "evolution.json", content)
    return content
