"""What leaves the house in the end: the model of a run, exported into RUN/export beside it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from nasformer.export import Exported, export_model, load_model
from nasformer.export.bundle import CARD, FORMATS
from nasformer.export.card import provenance
from nasformer.export.model_folder import CONFIG, WEIGHTS, facts_in
from nasformer.files import read_json
from nasformer.progress import say

EXPORT = "export"


def export_folder(source: Path, to: str | Path, formats: Sequence[str] = tuple(FORMATS)) -> Exported:
    """Exports the model of a folder, with all that is known of it and of the run that it lies in."""
    come = provenance(source)
    return export_model(load_model(source), to, facts_in(source) | ({"provenance": come} if come else {}), formats)


def ship(run: Path) -> None:
    """Exports a run's model, unless that was done before. A run is not lost with its export: it is said what failed."""
    model, target = run / "model", run / EXPORT
    for draft in run.glob(f".{EXPORT}.*.tmp"):  # of an export that was killed
        shutil.rmtree(draft, ignore_errors=True)
    try:
        if shipped(model, target):
            return
        done = export_folder(model, target)
    except OSError:  # a full disk: that is said elsewhere, and the same command goes on
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        say(f"warning: the model was not exported ({reason}); it is in {model}. Try: nasformer export {run} --to DIR")
        return
    for note in done.notes:
        say(note)


def places(run: Path) -> str:
    """Where what a run leaves behind is, on one line."""
    found = {"model": "model", "export": EXPORT, "report": "report.html"}
    return "   ".join(f"{name}: {run / path}" for name, path in found.items() if (run / path).exists())


def shipped(model: Path, target: Path) -> bool:
    """Whether the folder is an export of this model as it is now: the same weights, and the same facts about it."""
    if not all((target / name).exists() for name in (WEIGHTS, CONFIG, CARD)):
        return False
    if (target / WEIGHTS).read_bytes() != (model / WEIGHTS).read_bytes():
        return False
    facts, known = read_json(target / CONFIG), read_json(model / CONFIG)
    come = provenance(model)
    return all(facts.get(name) == value for name, value in known.items()) and facts.get("provenance", {}) == come
