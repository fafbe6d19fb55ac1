"""Searches the supernet of every space that `nasformer evolve` went through; the winners are for `same_recipe.py`.

python benchmarks/study/winners.py runs/evolve --models models.json --max-macs 34M --data cifar100.npz

Spaces are called A, B, C ... as in S3's paper. All other options are those of `nasformer search`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from string import ascii_uppercase

from nasformer.cli.main import main as nasformer
from nasformer.utils.files import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evolution", type=Path, help="the run folder of `nasformer evolve`")
    parser.add_argument("--models", type=Path, required=True, help="write them here")
    args, rest = parser.parse_known_args()
    models = {}
    steps = sorted((args.evolution / "steps").iterdir(), key=lambda step: int(step.name))
    for letter, step in zip(ascii_uppercase, steps, strict=False):
        folder = args.evolution.with_name(f"searched-{letter}")
        if status := nasformer(["search", "--supernet", str(step / "supernet"), "--out", str(folder), *rest]):
            sys.exit(status)
        result = json.loads((folder / "result.json").read_text())
        models[letter] = {"space": result["space"], "arch": result["winner"]["arch"]}
    write_json(args.models, models)


if __name__ == "__main__":
    main()
