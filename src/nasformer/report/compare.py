"""Runs side by side: their winners, the settings that differ, and their curves in common plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nasformer.errors import UserError
from nasformer.report.html import document, figures, save_pictures
from nasformer.report.page import models_table
from nasformer.report.plots import SINGLE, has_loss, log_column, points, quantity_ticks, smoothed
from nasformer.report.style import (
    axis_label,
    axis_value,
    describe_candidate,
    describe_model,
    format_setting,
    legend_below,
    new_figure,
    nice_ticks,
    palette,
    plain,
    style_axes,
)
from nasformer.results.contents import MOST, RunContents, front, read_run, thinned
from nasformer.results.folder import RunFolder
from nasformer.search.journal import flatten
from nasformer.search.problem import Candidate, ModelResult
from nasformer.utils.files import write_json, write_text
from nasformer.utils.tables import html_row, html_table

COST = "params"
DERIVED = ("budget", "stream")
"""Settings that repeat others, or that a run finds out for itself."""


@dataclass(frozen=True)
class Effort:
    """The task of a run, and the effort it took."""

    space: str | None
    data: str | None
    seed: int | None
    budget: str
    strategy: str | None
    candidates: int
    steps: int

    @classmethod
    def of(cls, run: RunContents) -> Effort:
        space, data, seed = (run.config.get(name) for name in ("space", "data", "seed"))
        search = run.config.get("search")
        strategy = search.get("strategy") if run.candidates and isinstance(search, dict) else None
        steps = run.log[-1].step if run.log else 0
        return cls(space, data, seed, run.budget, strategy, len(run.candidates), steps)


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs by name."""

    runs: Mapping[str, RunContents]

    def winners(self) -> list[ModelResult]:
        """The shipped models under the names of their runs, inherited weights marked; no scores where there is none."""
        shipped = {name: run.shipped for name, run in self.runs.items()}
        names = {name: f"{name} (inherited)" if run.inherits else name for name, run in self.runs.items()}
        return [replace(model, name=names[name]) if model else ModelResult(name) for name, model in shipped.items()]

    def efforts(self) -> dict[str, Effort]:
        return {name: Effort.of(run) for name, run in self.runs.items()}

    def differences(self) -> dict[str, list[Any]]:
        """Settings that differ between the runs, each with its values by run; None where a run lacks it.

        Options that a command does not have, such as the training's of a search, are no difference.
        """
        shared = set.intersection(*(set(run.config) for run in self.runs.values())) - set(DERIVED)
        settings = [dict(flatten(run.config)) for run in self.runs.values()]
        names = dict.fromkeys(name for run in settings for name in run if name.split(".")[0] in shared)
        values = {name: [run.get(name) for run in settings] for name in names}
        return {name: row for name, row in values.items() if len(set(map(format_setting, row))) > 1}

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which has no NaN."""
        rows = []
        for winner, (name, effort) in zip(self.winners(), self.efforts().items(), strict=True):
            scores = {key: value for key, value in winner.to_dict().items() if key != "name"}
            rows.append({"name": name, "folder": str(self.runs[name].folder), **asdict(effort), "winner": scores})
        return {"runs": rows, "differences": self.differences()}


def compare_runs(folders: Sequence[str | Path]) -> Comparison:
    """Reads the runs; folders of the same name are named with their parents."""
    paths = list(dict.fromkeys(Path(folder) for folder in folders))
    if len(paths) < 2:
        raise UserError("give two runs or more to compare: nasformer compare RUN1 RUN2")
    for path in paths:
        kind = RunFolder(path).kind()
        if kind == "evolution":
            raise UserError(f"{path} is the evolution of a space; compare its steps, such as {path}/steps/0")
        if kind is None and path.is_dir():
            raise UserError(f"{path} holds no run; give folders that run, search or retrain has written")
    parts = [path.resolve().parts for path in paths]
    depth = next(d for d in range(1, max(map(len, parts)) + 1) if len({part[-d:] for part in parts}) == len(paths))
    return Comparison({"/".join(part[-depth:]): read_run(path) for part, path in zip(parts, paths, strict=True)})


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Writes compare.html, compare.json and plots/; gives the path of the HTML."""
    title, differences = f"nasformer: {len(comparison.runs)} runs compared", comparison.differences()
    efforts = list(map(asdict, comparison.efforts().values()))
    facts = {name: [effort[name] for effort in efforts] for name in efforts[0]}
    settings = runs_table(comparison, differences) if differences else "<p>All settings are the same.</p>"
    parts = [f"<h1>{escape(title)}</h1>", f"<h2>Winners</h2>\n{models_table(comparison.winners())}"]
    parts += [f"<h2>Runs</h2>\n{runs_table(comparison, facts)}", f"<h2>Settings that differ</h2>\n{settings}"]
    pictures = save_pictures(comparison, FIGURES, folder / "plots", {"fronts": front_tooltips(comparison)})
    parts += figures(CAPTIONS, pictures)
    write_json(folder / "compare.json", comparison.to_dict())
    write_text(folder / "compare.html", document(title, parts))
    return folder / "compare.html"


def runs_table(comparison: Comparison, facts: Mapping[str, Sequence[Any]]) -> str:
    """Facts by rows, runs by columns."""
    head = ["", *comparison.runs]
    rows = [html_row([name, *map(format_setting, values)], head=head) for name, values in facts.items()]
    return html_table(head, rows, kind="text")


# Plots that runs share; a run has the same colour in all of them


def comparable(comparison: Comparison) -> dict[str, RunContents]:
    """The runs whose searches raised the same score as the first one's; others cannot share its axis."""
    searched = {name: run for name, run in comparison.runs.items() if judged(run)}
    return {name: run for name, run in searched.items() if run.score == next(iter(searched.values())).score}


def judged(run: RunContents) -> list[Candidate]:
    return [candidate for candidate in run.judged if math.isfinite(candidate.get(COST))]


def fronts(comparison: Comparison) -> Figure | None:
    """The fronts of all searches, their candidates faintly behind, and their winners."""
    shown = comparable(comparison)
    if not shown:
        return None
    figure = new_figure(8, 5.2)
    axes = figure.subplots()
    for name, run in shown.items():
        draw_front(axes, comparison, name, run)
    style_axes(axes, axis_label(COST), axis_label(run.score))
    quantity_ticks(axes, 8)
    legend_below(figure, [axes])
    return figure


def draw_front(axes: Axes, comparison: Comparison, name: str, run: RunContents) -> None:
    candidates, colour = judged(run), palette(list(comparison.runs))[name]
    faint = points(thinned(candidates, MOST), COST, run.score)
    axes.scatter(*faint, s=10, color=colour, alpha=0.2, lw=0, zorder=2)
    best, number = front(candidates, COST, run.score), list(comparison.runs).index(name)
    stairs = points(best, COST, run.score)
    axes.step(*stairs, where="post", color=colour, lw=1.6, zorder=3, label=plain(name, 40))
    dots = axes.scatter(*stairs, s=26, color=colour, edgecolors="white", linewidths=0.6, zorder=4)
    dots.set_urls([f"#run-{number}-{candidate.id}" for candidate in best])
    if run.winner and math.isfinite(run.score_of(run.winner)):
        at = run.winner.get(COST), axis_value(run.score, run.score_of(run.winner))
        axes.scatter(*at, marker="*", s=320, color=colour, edgecolors="white", zorder=5, urls=[f"#winner-{number}"])


def front_tooltips(comparison: Comparison) -> dict[str, str]:
    """The tooltips of `fronts` by the name of the dot."""
    tooltips: dict[str, str] = {}
    for name, run in comparable(comparison).items():
        number = list(comparison.runs).index(name)
        for candidate in front(judged(run), COST, run.score):
            tooltips[f"run-{number}-{candidate.id}"] = f"{name}\n{describe_candidate(candidate)}"
        if run.winner:
            tooltips[f"winner-{number}"] = f"{name}\n{describe_model(run.winner)}"
    return tooltips


def progress(comparison: Comparison) -> Figure | None:
    """The best so far by the number of candidates judged."""
    shown, colours = comparable(comparison), palette(list(comparison.runs))
    if not shown:
        return None
    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    for name, run in shown.items():
        scores = [axis_value(run.score, candidate.get(run.score)) for candidate in run.candidates]
        best, single = np.fmax.accumulate(np.array(scores, dtype=float)), SINGLE if len(scores) == 1 else {}
        x = range(1, len(best) + 1)
        axes.step(x, best, where="post", color=colours[name], lw=2, label=plain(name, 40), **single)
    style_axes(axes, "candidates judged", f"best {axis_label(run.score)}")
    axes.xaxis.set_major_locator(nice_ticks(10, integer=True))
    legend_below(figure, [axes])
    return figure


def training(comparison: Comparison) -> Figure | None:
    """Training losses by epoch: smoothed curves over the raw ones."""
    colours = palette(list(comparison.runs))
    logs = {name: run.log for name, run in comparison.runs.items() if has_loss(run.log)}
    if not logs:
        return None
    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    by = "epoch" if all(line.epoch is not None for log in logs.values() for line in log) else "step"
    for name, log in logs.items():
        x, loss = log_column(log, by), log_column(log, "loss")
        axes.plot(x, loss, color=colours[name], lw=0.8, alpha=0.3)
        single = SINGLE if len(loss) == 1 else {}
        axes.plot(*smoothed(x, loss), color=colours[name], lw=2, label=plain(name, 40), **single)
    style_axes(axes, by, "training loss")
    legend_below(figure, [axes])
    return figure


FIGURES: dict[str, Callable[[Comparison], Figure | None]] = {
    "fronts": fronts,
    "search_progress": progress,
    "training_curve": training,
}
CAPTIONS = {
    "fronts": (
        "Pareto fronts",
        "The best score at each size, by run; faint dots are candidates, stars the winners. Point at a dot to see its "
        "architecture. Runs whose searches raised another score than the first one's are left out.",
    ),
    "search_progress": ("Progress of the searches", "The best so far by the number of candidates judged."),
    "training_curve": ("Training", "Training losses; long ones as running medians."),
}
