"""Winners of searches as models that `same_recipe.py` trains.

python benchmarks/study/models_of.py dss=runs/dss snip=runs/snip --models models.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nasformer.utils.files import write_json


def model_of(run: Path) -> dict[str, Any]:
    """A winner as its search built it, but for the sizes of images and classes, which are those of the training."""
    result, asked = (json.loads((run / name).read_text()) for name in ("result.json", "config.json"))
    patch = {"patch_size": asked["patch_size"]} if asked["patch_size"] else {}
    return {"space": result["space"], "arch": result["winner"]["arch"], "options": {**asked["model"], **patch}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="NAME=RUN: the name of a model, and the run folder of its search")
    parser.add_argument("--models", type=Path, required=True, help="write them here")
    args = parser.parse_args()
    pairs = [text.partition("=") for text in args.runs]
    models = {name: model_of(Path(run)) for name, _, run in pairs}
    write_json(args.models, models)


if __name__ == "__main__":
    main()
