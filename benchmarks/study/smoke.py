"""Studies in small: random images, random weights, and commands that take a few steps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

FEW = "--train.iterations 2 --train.batch_size 8 --train.warmup_epochs 0"
EVOLUTION = "--search.population 3 --search.generations 1 --search.parents 2"
RUN = f"{FEW} {EVOLUTION} --search.random_references 1 --export false --calibration-images 8"
SETTINGS = (
    '{"batch": 8, "full": {"iterations": 2}, "supernet": {"iterations": 2}, "finish": {"iterations": 2}, '
    '"search": {"population": 3, "generations": 1, "parents": 2}, "img_size": 32}'
)
SHORTER = {
    "nasformer run": RUN,
    "nasformer retrain": f"{FEW} --export false",
    "nasformer finetune": f"{FEW} --export false",
    "nasformer evolve": f"{FEW} --evolve.samples 12 --evolve.top 2 --evolve.further_epochs 1 --evolve.min_samples 1",
    "winners.py": f"{EVOLUTION} --calibration-images 8",
    "rivals.py": "--random 3 --calibration-images 8",
    "same_recipe.py": FEW,
    "pretrained_cut.py": f"--random 1 --settings '{SETTINGS}'",
}
"""Options that are added to a command, by its program; the last one counts."""
SEARCHES = {
    "random": "--search.evaluations 2 --probe-size 4",
    "evolution": EVOLUTION,
    "cyclic": "--search.population 3 --search.tournament 2 --search.steps 1 --search.cycles 1",
}
"""The same of a search without training, by its strategy; that of the recipes for ESFormer is cyclic."""
SIDES = {"cifar100": 32, "tinyimagenet100": 64, "imagenette": 64, "flowers102": 64}


def shortened(words: Sequence[str]) -> list[str]:
    """The command with options that make it take seconds."""
    program = f"nasformer {words[1]}" if words[0] == "nasformer" else Path(words[1]).name
    strategies = [after for word, after in pairwise(words) if word == "--search.strategy"]
    extra = SEARCHES[(strategies or ["cyclic"])[0]] if program == "nasformer search" else SHORTER.get(program, "")
    return [*words, *shlex.split(extra)]


def make_set(path: Path, classes: int = 4) -> None:
    """Writes a set of random images as docs/data.md describes it, of the size that the set of this name has."""
    rng, side = np.random.default_rng(0), SIDES.get(path.stem, 32)
    arrays = {"classes": np.array([f"class {number}" for number in range(classes)])}
    for part, count in {"train": 8, "holdout": 3, "test": 3}.items():
        arrays[f"{part}_images"] = rng.integers(0, 256, (classes * count, side, side, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.repeat(np.arange(classes), count)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def make_weights(words: Iterable[str]) -> None:
    """Writes random weights of the nets that commands name as timm:NAME:FILE, where there is no such file."""
    for name, file in {match.groups() for word in words if (match := re.fullmatch(r"timm:(\w+):(.+)", word))}:
        import timm
        from safetensors.torch import save_file

        if not Path(file).exists():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            save_file(timm.create_model(name, pretrained=False).state_dict(), file)
