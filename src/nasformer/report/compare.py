"""Several runs side by side: their winners, what they were asked differently, and their curves in common plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nasformer.errors import UserError
from nasformer.report.contents import Model, Run, read_run
from nasformer.report.evolution import is_evolution
from nasformer.report.hover import candidate_in_words, model_in_words, save_picture
from nasformer.report.labels import axis_label, on_axis
from nasformer.report.page import document, figure, in_words, table
from nasformer.report.plots import smoothed
from nasformer.search.problem import Candidate
from nasformer.utils.figures import NICE, dress, legend_below, new_figure, palette, plain
from nasformer.utils.files import write_json, write_text
from nasformer.utils.tables import html_row, html_table
from nasformer.utils.units import format_quantity

# ----------------------------------------------------------------------------------------------------------------------
# Plots that runs share: fronts, progress of the searches, training curves. A colour is a run in all of them.
# ----------------------------------------------------------------------------------------------------------------------

COST = "params"


def searches(comparison: Comparison) -> Iterator[tuple[int, str, Run]]:
    """The runs whose searches raised the same score as the first one's; others cannot share its axis."""
    found = [(place, name, run) for place, (name, run) in enumerate(comparison.runs.items()) if _judged(run)]
    yield from (one for one in found if one[2].score == found[0][2].score)


def _judged(run: Run) -> list[Candidate]:
    return [one for one in run.candidates if math.isfinite(one.scores.get(run.score, math.nan)) and COST in one.scores]


def front_of(run: Run) -> list[Candidate]:
    """The candidates with which the best score that each cost buys goes up."""
    front: list[Candidate] = []
    for one in sorted(_judged(run), key=lambda one: (one.scores[COST], -one.scores[run.score])):
        if not front or one.scores[run.score] > front[-1].scores[run.score]:
            front.append(one)
    return front


def fronts(comparison: Comparison) -> Figure | None:
    """The fronts of all searches, their candidates faintly behind, and their winners."""
    shown, colours = list(searches(comparison)), palette(list(comparison.runs))
    if not shown:
        return None
    figure, score = new_figure(8, 5.2), shown[0][2].score
    axes = figure.subplots()
    for place, name, run in shown:
        _front(axes, place, name, run, colours[name])
    dress(axes, axis_label(COST), axis_label(score))
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=NICE))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value, 4)))
    legend_below(figure, [axes])
    return figure


def _front(axes: Any, place: int, name: str, run: Run, colour: str) -> None:
    every = [(one.scores[COST], on_axis(run.score, one.scores[run.score])) for one in _judged(run)]
    axes.scatter(*zip(*every, strict=True), s=10, color=colour, alpha=0.2, lw=0, zorder=2)
    steps = [(one.scores[COST], on_axis(run.score, one.scores[run.score])) for one in front_of(run)]
    x, y = zip(*steps, strict=True)
    axes.step(x, y, where="post", color=colour, lw=1.6, zorder=3, label=plain(name, 40))
    dots = axes.scatter(x, y, s=26, color=colour, edgecolors="white", linewidths=0.6, zorder=4)
    dots.set_urls([f"#run-{place}-{one.id}" for one in front_of(run)])
    if run.winner and math.isfinite(run.score_of(run.winner)):
        at = run.winner.scores.get(COST, math.nan), on_axis(run.score, run.score_of(run.winner))
        axes.scatter(*at, marker="*", s=320, color=colour, edgecolors="white", zorder=5, urls=[f"#winner-{place}"])


def dots(comparison: Comparison) -> dict[str, str]:
    """What the dots of `fronts` tell."""
    told: dict[str, str] = {}
    for place, name, run in searches(comparison):
        told |= {f"run-{place}-{one.id}": f"{name}\n{candidate_in_words(one)}" for one in front_of(run)}
        if run.winner:
            told[f"winner-{place}"] = f"{name}\n{model_in_words(run.winner)}"
    return told


def progress(comparison: Comparison) -> Figure | None:
    """The best so far by the number of candidates judged."""
    shown, colours = list(searches(comparison)), palette(list(comparison.runs))
    if not shown:
        return None
    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    for _, name, run in shown:
        scores = [on_axis(run.score, one.scores.get(run.score, math.nan)) for one in run.candidates]
        best = np.fmax.accumulate(np.array(scores, dtype=float))
        dots: dict[str, Any] = {"marker": "o", "ms": 4} if len(best) == 1 else {}
        axes.step(range(1, len(best) + 1), best, where="post", color=colours[name], lw=2, label=plain(name, 40), **dots)
    dress(axes, "candidates judged", f"best {axis_label(shown[0][2].score)}")
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=NICE))
    legend_below(figure, [axes])
    return figure


def training(comparison: Comparison) -> Figure | None:
    """The training losses by epoch: smoothed, over what they are smoothed from."""
    colours = palette(list(comparison.runs))
    known = {name: run.log for name, run in comparison.runs.items() if any(math.isfinite(x["loss"]) for x in run.log)}
    if not known:
        return None
    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    by = "epoch" if all(math.isfinite(line["epoch"]) for log in known.values() for line in log) else "step"
    for name, log in known.items():
        x, loss = (np.array([line[key] for line in log], dtype=float) for key in (by, "loss"))
        dots: dict[str, Any] = {"marker": "o", "ms": 4} if len(loss) == 1 else {}
        axes.plot(x, loss, color=colours[name], lw=0.8, alpha=0.3)
        axes.plot(x, smoothed(loss), color=colours[name], lw=2, label=plain(name, 40), **dots)
    dress(axes, by, "training loss")
    legend_below(figure, [axes])
    return figure


FIGURES: dict[str, tuple[Callable[[Comparison], Figure | None], str, str]] = {
    "fronts": (
        fronts,
        "Pareto fronts",
        "The best score that each size buys, by run; faint dots are all candidates, stars the winners. Point at a dot "
        "to see its architecture. Runs whose searches raised another score than the first one's are left out.",
    ),
    "search_progress": (progress, "Progress of the searches", "The best so far by the number of candidates judged."),
    "training_curve": (training, "Training", "Training losses; long ones as running medians."),
}


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
    pass

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
