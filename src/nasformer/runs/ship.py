"""The export of a run's model into RUN/export, at the end of a run or on request."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nasformer.export.bundle import CARD, FORMATS, Exported, export_model
from nasformer.families.storage import CONFIG, WEIGHTS, facts_in, load_model
from nasformer.results.contents import read_run
from nasformer.results.folder import RunFolder
from nasformer.results.verdict import judge
from nasformer.tasks.options import split_scores
from nasformer.utils.files import read_json
from nasformer.utils.progress import say

ORIGINS = {"retrained": "trained from scratch", "finetuned": "inherited, then trained further"}
"""Where the weights of a single model come from, by its name in the results."""


def export_folder(source: Path, to: str | Path, formats: Sequence[str] = tuple(FORMATS)) -> Exported:
    """Exports the model of a folder, with all that is known of it and of the run that it lies in."""
    model, origin = load_model(source), origin_of(source)
    facts = facts_in(source) | ({"provenance": origin} if origin else {})
    return export_model(model, to, facts, formats, quiet=False)


def provenance(folder: Path) -> dict[str, Any]:
    """How the model of a folder was made, if it lies in a run: data, seed, recipe, accuracies and versions."""
    run = RunFolder(folder.parent if folder.name == "model" else folder)
    if not run.result.exists() or not run.config.exists():
        return {}
    config, shipped = run.read_config().settings, run.read_result().shipped
    asked = {name: config[name] for name in ("data", "holdout", "seed", "budget", "versions") if config.get(name)}
    accuracies = {name: shipped[name] for name in split_scores() if math.isfinite(shipped.get(name))}
    name = shipped.name.removeprefix("winner, ")
    weights = ORIGINS.get(name, name if name.startswith("from ") else "inherited from a trained supernet")
    made = {"weights": weights, **asked, **accuracies}
    return {**made, "seed": config.get("seed", 0), "recipe": config.get("train", {})}


def ship(run: RunFolder) -> None:
    """Exports a run's model, unless that was done before. A run is not lost with its export: it is said what failed."""
    for draft in run.path.glob(f".{run.export.name}.*.tmp"):  # of an export that was killed
        shutil.rmtree(draft, ignore_errors=True)
    try:
        if is_exported(run.model, run.export):
            return
        say(f"exporting the model in every format and checking each: {run.export}")
        exported = export_folder(run.model, run.export)
    except OSError:  # a full disk: that is said elsewhere, and the same command goes on
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        advice = f"Try: nasformer export {run} --to DIR"
        say(f"warning: the model was not exported ({reason}); it is in {run.model}. {advice}")
        return
    for note in exported.notes:
        say(note)


def is_exported(model: Path, target: Path) -> bool:
    """Whether the folder is an export of this model as it is now: the same weights, and the same facts about it."""
    if not all((target / name).exists() for name in (WEIGHTS, CONFIG, CARD)):
        return False
    if (target / WEIGHTS).read_bytes() != (model / WEIGHTS).read_bytes():
        return False
    exported, current = read_json(target / CONFIG), read_json(model / CONFIG)
    same = all(exported.get(name) == value for name, value in current.items())
    return same and exported.get("provenance", {}) == origin_of(model)


def origin_of(model: Path) -> dict[str, Any]:
    """How the model of a folder was made, with the verdict on the run that it lies in."""
    origin, run = provenance(model), model.parent if model.name == "model" else model
    verdict = judge(read_run(run)) if origin else None
    return {**origin, "verdict": verdict.sentences} if verdict else origin
