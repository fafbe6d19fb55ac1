"""A run folder as a small search would leave it: real architectures and costs, invented scores."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from nasformer.families import get_space
from nasformer.files import write_json, write_text
from nasformer.search import Budget, Candidate, search
from nasformer.space import Arch

SPACE = get_space("autoformer-micro")
LIMIT = 150_000


def score(arch: Arch) -> dict[str, float]:
    """Larger is better, with a little luck that depends on the architecture alone."""
    luck = random.Random(arch.to_json()).gauss(0, 0.012)
    return {"accuracy": min(0.999, 0.99 - 0.55 * math.exp(-SPACE.costs(arch)["params"] / 55_000) + luck)}


def model(name: str, arch: Arch) -> dict[str, Any]:
    costs, accuracy = SPACE.costs(arch), score(arch)["accuracy"]
    known = {"params": costs["params"], "macs": costs["macs"]}
    return {
        "name": name,
        "arch": arch.to_dict(),
        **known,
        "holdout_accuracy": accuracy,
        "test_accuracy": accuracy - 0.01,
    }


def log_lines(epochs: int = 30, per_epoch: int = 10) -> list[dict[str, float]]:
    """A loss that falls with noise, and a learning rate with warm-up and cosine."""
    noise, lines, last = random.Random(0), [], epochs * per_epoch
    for step in range(1, last + 1):
        rate = 1e-3 * min(step / 30, 0.5 + 0.5 * math.cos(math.pi * step / last))
        loss = 0.25 + 2.1 * math.exp(-4 * step / last) + noise.gauss(0, 0.08)
        lines.append({"step": step, "epoch": step / per_epoch, "loss": loss, "lr": rate})
    return lines


def write_log(run: Path, lines: list[dict[str, float]]) -> None:
    write_text(run / "train" / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def write_run(run: Path, **options: Any) -> list[Candidate]:
    """Fills the folder; `options` are those of the evolution."""
    chosen = {"population": 12, "generations": 5, "parents": 4, **options}
    journal, budget = run / "search" / "journal.jsonl", Budget(max_params=LIMIT)
    found = search(SPACE, score, SPACE.costs, options=chosen, budget=budget, journal=journal)
    config = {
        "space": SPACE.name,
        "data": "digits",
        "seed": 0,
        "budget": {"max_params": LIMIT},
        "train": {"epochs": 30, "batch_size": 128, "lr": 0.001, "weight_decay": 0.05},
        "search": {"strategy": "evolution", **chosen},
        "versions": {"nasformer": "0.1.0", "torch": "2.11.0", "python": "3.12.3"},
    }
    root = SPACE.root
    references = {"random": found.candidates[0].arch, "smallest": root.smallest(), "largest": root.largest()}
    result = {
        "space": SPACE.name,
        "budget": str(budget),
        "winner": model("winner", found.best.arch),
        "references": [model(name, arch) for name, arch in references.items()],
        "front": [candidate.to_dict() for candidate in found.front],
        "note": found.note,
    }
    write_json(run / "config.json", config)
    write_json(run / "result.json", result)
    write_log(run, log_lines())
    return found.candidates
