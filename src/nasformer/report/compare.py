"""Several runs side by side: their winners, what they were asked differently, and their curves in common plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.files import write_json, write_text
from nasformer.report.contents import Model, Run, read_run
from nasformer.report.evolution.contents import is_evolution
from nasformer.report.html import document, figure, in_words, table
from nasformer.report.picture import save_picture
from nasformer.report.tables import html_row, html_table

DERIVED = ("budget", "stream")
"""Settings that say what others say, or that a run finds out for itself."""


@dataclass(frozen=True)
class Comparison:
    """Runs by name."""

    runs: Mapping[str, Run]

    def winners(self) -> list[Model]:
        """The winner of each run under the run's name; one that has none yet has no scores."""
        found = {name: run.winner for name, run in self.runs.items()}
        return [Model(name, one.arch, one.scores) if one else Model(name, {}, {}) for name, one in found.items()]

    def efforts(self) -> dict[str, dict[str, Any]]:
        """What each run was about and what it took."""
        return {name: _effort(run) for name, run in self.runs.items()}

    def differences(self) -> dict[str, list[Any]]:
        """Settings that are not the same in all runs, each with its value by run; None where a run has none."""
        settings = [_flat(run.config) for run in self.runs.values()]
        names = dict.fromkeys(name for one in settings for name in one)
        values = {name: [one.get(name) for one in settings] for name in names if name.split(".")[0] not in DERIVED}
        return {name: own for name, own in values.items() if any(value != own[0] for value in own)}

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which has no word for NaN."""
        winners, efforts = self.winners(), self.efforts()
        rows = [
            {"name": one.name, "folder": str(self.runs[one.name].folder), **efforts[one.name], "winner": _plain(one)}
            for one in winners
        ]
        return {"runs": rows, "differences": self.differences()}


def compare_runs(folders: Sequence[str | Path]) -> Comparison:
    """Reads the runs; folders of the same name are told apart by what stands before it."""
    paths = list(dict.fromkeys(Path(folder) for folder in folders))
    if len(paths) < 2:
        raise UserError("give two runs or more to compare: nasformer compare RUN1 RUN2")
    for path in filter(is_evolution, paths):
        raise UserError(f"{path} is the evolution of a space; compare its steps, such as {path}/steps/0")
    parts = [path.resolve().parts for path in paths]
    depth = next(d for d in range(1, max(map(len, parts)) + 1) if len({part[-d:] for part in parts}) == len(paths))
    return Comparison({"/".join(part[-depth:]): read_run(path) for part, path in zip(parts, paths, strict=True)})


def _effort(run: Run) -> dict[str, Any]:
    asked = run.config.get("search")
    return {
        "space": run.config.get("space"),
        "data": run.config.get("data"),
        "seed": run.config.get("seed"),
        "budget": run.budget,
        "strategy": asked.get("strategy") if run.candidates and isinstance(asked, dict) else None,
        "candidates": len(run.candidates),
        "steps": int(run.log[-1]["step"]) if run.log else 0,
    }


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _plain(model: Model) -> dict[str, Any]:
    scores = {name: None if math.isnan(value) else value for name, value in model.scores.items()}
    return {"arch": dict(model.arch), **scores}


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Writes compare.html, compare.json and plots/; gives the path of the HTML."""
    from nasformer.report.compare_plots import FIGURES, dots  # not at the top: matplotlib takes a while to import

    told = {"fronts": dots(comparison)}
    parts = [f"<h1>{escape(_title(comparison))}</h1>", f"<h2>Winners</h2>\n{table(comparison.winners())}"]
    parts.append(f"<h2>Runs</h2>\n{_rows(list(comparison.runs), _turned(comparison.efforts()))}")
    parts += [_differences(comparison)]
    for name, (draw, title, caption) in FIGURES.items():
        picture = save_picture(draw(comparison), folder / "plots" / name, told.get(name))
        parts.append(figure(title, caption, picture) if picture else "")
    write_json(folder / "compare.json", comparison.to_dict())
    write_text(folder / "compare.html", document(_title(comparison), parts))
    return folder / "compare.html"


def _title(comparison: Comparison) -> str:
    return f"nasformer: {len(comparison.runs)} runs compared"


def _differences(comparison: Comparison) -> str:
    found = comparison.differences()
    shown = _rows(list(comparison.runs), found) if found else "<p>All settings are the same.</p>"
    return f"<h2>Settings that differ</h2>\n{shown}"


def _turned(efforts: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    facts = next(iter(efforts.values()))
    return {name: [effort[name] for effort in efforts.values()] for name in facts}


def _rows(runs: Sequence[str], facts: Mapping[str, Sequence[Any]]) -> str:
    """Facts by rows, runs by columns."""
    return html_table(["", *runs], [html_row([name, *map(in_words, values)]) for name, values in facts.items()])
