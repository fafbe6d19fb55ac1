"""A run folder as a small search would leave it: real architectures and costs, invented scores."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from nasformer.models.registry import get_space
from nasformer.search.problem import Candidate
from nasformer.search.run import SearchResult, search
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.utils.files import write_json, write_text

SPACE = get_space("autoformer-micro")
LIMIT = 150_000
PLOTS = {"score_vs_cost", "architecture", "bars", "search_progress", "training_curve"}


def score(arch: Arch) -> dict[str, float]:
    """Larger is better, with a little luck that depends on the architecture alone."""
    luck = random.Random(arch.to_json()).gauss(0, 0.012)
    return {"accuracy": min(0.999, 0.99 - 0.55 * math.exp(-SPACE.costs(arch)["params"] / 55_000) + luck)}


def model(name: str, arch: Arch) -> dict[str, Any]:
    """A line of the results."""
    accuracy = score(arch)["accuracy"]
    accuracies = {"holdout_accuracy": accuracy, "test_accuracy": accuracy - 0.01}
    return {"name": name, "arch": arch.to_dict(), **SPACE.costs(arch), **accuracies}


def log_lines(epochs: int = 30, per_epoch: int = 10) -> list[dict[str, Any]]:
    """A loss that falls with noise, and a learning rate with warm-up and cosine."""
    noise, lines, last = random.Random(0), [], epochs * per_epoch
    for step in range(1, last + 1):
        rate = 1e-3 * min(step / 30, 0.5 + 0.5 * math.cos(math.pi * step / last))
        loss = 0.25 + 2.1 * math.exp(-4 * step / last) + noise.gauss(0, 0.08)
        lines.append({"step": step, "epoch": step / per_epoch, "loss": loss, "lr": rate})
    return lines


def write_log(run: Path, lines: list[dict[str, Any]]) -> None:
    write_text(run / "train" / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def write_run(run: Path, **options: Any) -> list[Candidate]:
    """Fills the folder; `options` are those of the evolution."""
    chosen = {"population": 12, "generations": 5, "parents": 4, **options}
    journal, budget = run / "search" / "journal.jsonl", Budget(max_params=LIMIT)
    found = search(SPACE, score, SPACE.costs, options=chosen, budget=budget, journal=journal)
    by_size = sorted(found.candidates, key=lambda candidate: candidate.scores["params"])
    rivals = {"random": found.candidates[0], "smallest": by_size[0], "largest": by_size[-1]}
    config = {
        "space": SPACE.name,
        "data": "digits",
        "seed": 0,
        "budget": {"max_params": "150K"},
        "train": {"epochs": 30, "batch_size": 128, "lr": 0.001, "weight_decay": 0.05},
        "search": {"strategy": "evolution", **chosen},
        "versions": {"nasformer": "0.1.0", "torch": "2.11.0", "python": "3.12.3"},
    }
    result = {
        "space": SPACE.name,
        "data": "digits",
        "budget": str(budget),
        "winner": model("winner", found.best.arch),
        "references": [model(name, candidate.arch) for name, candidate in rivals.items()],
        "front": [candidate.to_dict() for candidate in found.front],
        "note": found.note,
    }
    write_json(run / "config.json", config)
    write_json(run / "result.json", result)
    write_log(run, log_lines())
    return found.candidates


def edit(path: Path, **changes: Any) -> None:
    """Changes top-level entries of a JSON file."""
    write_json(path, {**json.loads(path.read_text()), **changes})


def untrained_scores(arch: Arch) -> dict[str, float]:
    """Two scores that do not agree, one of them below zero."""
    costs = SPACE.costs(arch)
    luck = random.Random(arch.to_json())
    return {"dss": costs["params"] / 1000 + luck.gauss(0, 8), "zen": -50 + luck.gauss(costs["macs"] / 1e6, 2)}


def write_untrained_run(run: Path, *proxies: str) -> SearchResult:
    """Fills the folder as a search without training does: no accuracy anywhere, and no training."""
    budget, options = Budget(max_params=LIMIT), {"population": 12, "generations": 5, "parents": 4}
    place: dict[str, Any] = {"budget": budget, "options": options, "journal": run / "search" / "journal.jsonl"}
    found = search(SPACE, untrained_scores, SPACE.costs, objectives=proxies, order="ranks", **place)

    def row(name: str, arch: Arch) -> dict[str, Any]:
        scores = {name: score for name, score in untrained_scores(arch).items() if name in proxies}
        return {"name": name, "arch": arch.to_dict(), **SPACE.costs(arch), **scores}

    rivals = {"random": SPACE.root.sample(random.Random(1)), "smallest": SPACE.root.smallest()}
    result = {
        "space": SPACE.name,
        "data": None,
        "budget": str(budget),
        "proxies": proxies,
        "winner": row("winner", found.best.arch),
        "references": [row(name, arch) for name, arch in rivals.items()],
        "front": [candidate.to_dict() for candidate in found.front],
    }
    write_json(run / "config.json", {"space": SPACE.name, "data": "", "seed": 0, "budget": {"max_params": LIMIT}})
    write_json(run / "result.json", result)
    return found
