"""The figures of a run: search, training and results. Each function gives None where the run has nothing to draw."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from nasformer.errors import UserError
from nasformer.report.architectures import (
    Block,
    architectures,
    is_number,
    operator_curves,
    operator_shares,
    split_arch,
)
from nasformer.report.html import Picture, document, draw_picture, figure as html_figure, heading, save_picture, tiles
from nasformer.report.style import (
    BLUE,
    BLUES,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    SKY,
    axis_label,
    axis_value,
    describe_limit,
    format_score,
    is_share,
    legend_below,
    lighten,
    marker_of,
    metric_name,
    model_kind,
    new_figure,
    nice_ticks,
    plain,
    style_axes,
    style_colorbar,
)
from nasformer.results.contents import RunContents, front, read_run
from nasformer.results.folder import RunFolder
from nasformer.results.result import RunResult, Snapshot
from nasformer.search.problem import Candidate, ModelResult
from nasformer.search.run import SearchResult
from nasformer.tasks.options import task_scores
from nasformer.train.evaluate import ClassScore, Confusion
from nasformer.train.log import LogLine
from nasformer.utils.files import write_text
from nasformer.utils.statistics import wilson
from nasformer.utils.tables import html_row, html_table, write_csv
from nasformer.utils.units import format_quantity

Point = tuple[float, float]
SINGLE: dict[str, Any] = {"marker": "o", "ms": 4}  # a line of one point would not be seen
SMOOTH_FROM, SMOOTH_POINTS = 60, 1_000  # lines of a log from which a running median is drawn, and its points at most
FAR = 2.0  # times the largest value: a limit beyond it would squeeze the dots


# Score against cost


def points(candidates: Sequence[Candidate], cost: str, score: str) -> tuple[list[float], list[float]]:
    """Costs and scores of candidates, as they stand on the axes."""
    heights = [axis_value(score, candidate.scores[score]) for candidate in candidates]
    return [candidate.get(cost) for candidate in candidates], heights


def score_vs_cost(run: RunContents) -> Figure | None:
    """Candidates, the window of the budget, the front, the winner and the references; a panel for each cost."""
    costs = run.plotted_costs
    if not costs:
        return None
    figure = new_figure(1.5 + 6.5 * len(costs), 5.4)
    panels = figure.subplots(1, len(costs), squeeze=False, sharey=True)[0]
    for panel, cost in zip(panels, costs, strict=True):
        cost_panel(panel, run, cost)
        if panel is not panels[0]:
            panel.set_ylabel("")
    if len({candidate.generation for candidate in run.judged}) > 1:
        bar = figure.colorbar(panels[0].collections[0], ax=list(panels), pad=0.015, aspect=30)
        bar.locator = nice_ticks(8, integer=True)
        style_colorbar(bar, "generation")
    legend_below(figure, panels)
    return figure


def cost_panel(axes: Axes, run: RunContents, cost: str) -> None:
    """Candidates, front, models and budget by one cost."""
    draw_candidates(axes, run, cost)
    label = f"Pareto front{f' by {run.score} alone' if run.ranked else ''}"
    best = points(front(run.judged, cost, run.score), cost, run.score)
    axes.step(*best, where="post", color=INK, lw=1.4, zorder=4, label=label)
    window = run.limits.get(cost, (None, None))
    marks = [(model.get(cost), axis_value(run.score, run.score_of(model))) for model in run.models]
    x, y = points(run.judged, cost, run.score)
    across = axis_range([*x, *(end for end in window if end is not None)], [mark[0] for mark in marks])
    up = axis_range(y, [mark[1] for mark in marks])
    for number, model in reversed(list(enumerate(run.models))):  # the winner last, on top
        draw_mark(axes, model.name, marks[number], (across, up), run.score, f"#model-{number}")
    if window != (None, None):
        draw_window(axes, cost, window, across)
    axes.set(xlim=across, ylim=up)
    style_axes(axes, axis_label(cost), axis_label(run.score))
    quantity_ticks(axes, 8)


def draw_candidates(axes: Axes, run: RunContents, cost: str) -> None:
    """A dot for each candidate that is drawn, in the colour of its generation."""
    generations = [candidate.generation for candidate in run.judged]
    style: dict[str, Any] = {"s": 22, "alpha": 0.8, "edgecolors": "white", "linewidths": 0.3, "label": "candidate"}
    if len(set(generations)) > 1:
        style |= {"c": [candidate.generation for candidate in run.drawn], "cmap": "viridis_r"}
        style |= {"vmin": min(generations), "vmax": max(generations)}
    else:
        style["color"] = BLUE
    x, y = points(run.drawn, cost, run.score)
    dots = axes.scatter(x, y, zorder=3, **style)
    dots.set_urls([f"#candidate-{candidate.id}" for candidate in run.drawn])  # for the tooltips of the page


def axis_range(values: Sequence[float], marks: Sequence[float]) -> Point:
    """The part of an axis to show: all values and the marks near them. A far mark must not squeeze the rest."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite), max(finite)
    if low == high == 0:  # scores, which are not below 0
        return -0.05, 1.0
    near = 0.3 * (high - low)
    shown = [low, high, *(mark for mark in marks if low - near <= mark <= high + near)]
    room = 0.07 * (max(shown) - min(shown)) or 0.05 * abs(low) or 1.0
    return min(shown) - room, max(shown) + room


def draw_mark(axes: Axes, name: str, at: Point, ranges: tuple[Point, Point], score: str, url: str) -> None:
    """A model of the results; one that lies outside stands hollow at the edge, its numbers in the legend."""
    if not all(map(math.isfinite, at)):
        return
    shape, colour = marker_of(name)
    x, y = (clip(value, *ends) for value, ends in zip(at, ranges, strict=True))
    outside = (x, y) != at
    kind, numbers = plain(model_kind(name), 30), f"{format_quantity(at[0])}, {at[1]:.3g}{' %' * is_share(score)}"
    style: dict[str, Any] = {"facecolors": colour, "edgecolors": "white", "linewidths": 1.2, "label": kind}
    if outside:
        style = {"facecolors": "white", "edgecolors": colour, "linewidths": 1.8}
        style["label"] = f"{kind}, off the plot: {numbers}"
    size = 320 if shape == "*" else 85
    axes.scatter([x], [y], marker=shape, s=size, zorder=6, clip_on=False, urls=[url], **style)


def clip(value: float, low: float, high: float) -> float:
    """The value, or the edge that it lies beyond, a little inside so that the mark hides no label."""
    inset = 0.025 * (high - low)
    return value if low <= value <= high else min(max(value, low + inset), high - inset)


def draw_window(axes: Axes, cost: str, ends: tuple[float | None, float | None], shown: Point) -> None:
    """The budget as a pale band."""
    left, right = (edge if end is None else end for end, edge in zip(ends, shown, strict=True))
    axes.axvspan(left, right, color=GREEN, alpha=0.09, lw=0, zorder=0, label=f"budget: {describe_limit(cost, *ends)}")
    for end in ends:
        if end is not None:
            axes.axvline(end, color=GREEN, lw=1, ls=(0, (4, 3)), zorder=1)


def quantity_ticks(axes: Axes, count: int) -> None:
    """Ticks such as 120K along the x axis."""
    axes.xaxis.set_major_locator(nice_ticks(count))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value, 4)))


# Progress of the search


def search_progress(run: RunContents) -> Figure | None:
    """The best so far, the median and the middle half of each generation, and the random references."""
    generations, unit = run.generations()
    scores = {number: values for number, members in generations if (values := finite_scores(run, members))}
    if not scores:
        return None
    x, best = list(scores), [max(values) for values in scores.values()]
    low, middle, high = np.array([np.percentile(values, (25, 50, 75)) for values in scores.values()]).T
    figure = new_figure(8, 4.6)
    axes = figure.subplots()
    axes.fill_between(x, low, high, color=BLUE, alpha=0.16, lw=0, label="middle half")
    axes.plot(x, middle, color=BLUE, lw=2, marker="o", ms=4, label="median")
    label = f"best of the {'generation' if unit == 'generation' else 'batch'}"
    axes.scatter(x, best, s=22, color=RED, alpha=0.45, lw=0, zorder=3, label=label)
    axes.plot(x, np.maximum.accumulate(best), color=RED, lw=2, drawstyle="steps-post", label="best so far")
    draw_random_references(axes, run)
    draw_random_search(axes, run, generations)
    style_axes(axes, unit, axis_label(run.score))
    if not axes.dataLim.ymin < axes.dataLim.ymax:  # one score for all
        axes.set_ylim(axis_range([axes.dataLim.ymax], []))
    axes.xaxis.set_major_locator(nice_ticks(10, integer=True))
    if len(x) == 1:  # or the ticks would be fractions of a generation
        axes.set_xlim(x[0] - 1, x[0] + 1)
    legend_below(figure, [axes])
    return figure


def finite_scores(run: RunContents, candidates: Sequence[Candidate]) -> list[float]:
    scores = [candidate.get(run.score) for candidate in candidates]
    return [axis_value(run.score, score) for score in scores if math.isfinite(score)]


def draw_random_references(axes: Axes, run: RunContents) -> None:
    scores = [score for score in map(run.score_of, run.references("random")) if math.isfinite(score)]
    if scores:
        height = axis_value(run.score, sum(scores) / len(scores))
        label = "random reference" if len(scores) == 1 else f"mean of {len(scores)} random references"
        axes.axhline(height, color=PURPLE, lw=1.6, ls=(0, (5, 3)), label=label)


def draw_random_search(axes: Axes, run: RunContents, generations: Sequence[tuple[int, Sequence[Candidate]]]) -> None:
    """The best of the random search when it had judged as many candidates."""
    scores = [axis_value(run.score, candidate.get(run.score)) for candidate in run.random_search]
    best = np.fmax.accumulate(np.array(scores, dtype=float))
    counts = np.cumsum([len(members) for _, members in generations])
    points = [(at, best[count - 1]) for (at, _), count in zip(generations, counts, strict=True) if count <= len(best)]
    if points:
        label = f"best so far of {len(scores):,} random"
        axes.plot(*zip(*points, strict=True), color=PURPLE, lw=2, drawstyle="steps-post", label=label)


# Training


def log_column(log: Sequence[LogLine] | Sequence[Snapshot], name: str) -> np.ndarray:
    """A column of a training log; NaN where a line has no such number."""
    return np.array([getattr(line, name) for line in log], dtype=float)


def has_loss(log: Sequence[LogLine]) -> bool:
    return bool(np.isfinite(log_column(log, "loss")).any())


def training_curve(run: RunContents) -> Figure | None:
    """Loss and learning rate over the epochs, one above the other."""
    if not has_loss(run.log):
        return None
    by = "epoch" if np.isfinite(log_column(run.log, "epoch")).all() else "step"
    x, loss, rate = (log_column(run.log, name) for name in (by, "loss", "lr"))
    figure = new_figure(8, 5.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    many, single = len(loss) >= SMOOTH_FROM, SINGLE if len(loss) < 2 else {}
    upper.plot(x, loss, color=BLUE, lw=0.9 if many else 1.8, alpha=0.35 if many else 1, label="loss", **single)
    if many:
        upper.plot(*smoothed(x, loss), color=BLUE, lw=2, label="running median")
    for (name, log), colour in zip(run.baselines.items(), PALETTE[1:] * len(run.baselines), strict=False):
        curve = smoothed(log_column(log, by), log_column(log, "loss"))
        upper.plot(*curve, color=colour, lw=1.6, label=plain(f"timm:{name}", 40))
    if many or run.baselines:
        upper.legend(frameon=False, fontsize=9, labelcolor=INK)
    lower.plot(x, rate, color=ORANGE, lw=1.8, **single)
    lower.fill_between(x, rate, color=ORANGE, alpha=0.15, lw=0)
    lower.set_ylim(bottom=0)
    style_axes(upper, y="training loss")
    style_axes(lower, by, "learning rate")
    return figure


def smoothed(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The running median over a thirtieth of the values; a few values are left as they are."""
    if len(y) < SMOOTH_FROM:
        return x, y
    half = max(2, len(y) // 60)
    indices = range(0, len(y), -(-len(y) // SMOOTH_POINTS))
    windows = [y[max(0, index - half) : index + half + 1] for index in indices]
    finite = [window[np.isfinite(window)] for window in windows]
    medians = [np.median(window) if len(window) else math.nan for window in finite]
    return x[indices.start : indices.stop : indices.step], np.array(medians)


def health(run: RunContents) -> Figure | None:
    """The accuracies of the supernet's fixed subnets over its training, above the loss."""
    if not run.snapshots:
        return None
    figure = new_figure(8, 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    epochs, single = log_column(run.snapshots, "epoch"), {"marker": "o", "ms": 5} if len(run.snapshots) < 2 else {}
    colours = {"smallest": SKY, "middle": GREEN, "largest": ORANGE}
    for name in run.snapshots[0].subnets:
        accuracies = [100 * snapshot.subnets.get(name, math.nan) for snapshot in run.snapshots]
        style: dict[str, Any] = {"color": GREY, "lw": 0.9, "alpha": 0.6, "label": "random subnets"}
        if name in colours:
            style = {"color": colours[name], "lw": 2.2, "label": name, "zorder": 3}
        upper.plot(epochs, accuracies, **style, **single)
    x, loss = log_column(run.log, "epoch"), log_column(run.log, "loss")
    finite = np.isfinite(x) & np.isfinite(loss)
    lower.plot(x[finite], loss[finite], color=BLUE, lw=1.6)
    style_axes(upper, y=f"{metric_name(run.metric)} of subnets (%)")
    style_axes(lower, "epoch", "training loss")
    legend_below(figure, [upper])
    return figure


# Results


def bars(run: RunContents) -> Figure | None:
    """Test accuracy (or what the task has in its place) of the winner and of the references, and their parameters."""
    score = f"test_{run.metric}"
    shown = [model for model in run.models if math.isfinite(model.get(score))]
    if not shown:
        return None
    columns = [score] + ["params"] * any(model.get("params") > 0 for model in shown)
    figure = new_figure(5.4 + 3.6 * (len(columns) - 1), 1.1 + 0.5 * len(shown))
    grid = {"wspace": 0.08, "width_ratios": (3, 2)[: len(columns)]}
    panels = figure.subplots(1, len(columns), squeeze=False, sharey=True, gridspec_kw=grid)[0]
    for panel, name in zip(panels, columns, strict=True):
        bar_panel(panel, name, shown)
    name_rows(panels[0], [run.name_of(model) for model in shown])
    panels[0].invert_yaxis()
    return figure


def bar_panel(axes: Axes, name: str, models: Sequence[ModelResult]) -> None:
    values = [model.get(name) for model in models]
    lengths = [0.0 if math.isnan(value) else axis_value(name, value) for value in values]
    axes.barh(range(len(models)), lengths, height=0.62, color=[marker_of(model.name)[1] for model in models], zorder=3)
    for row, (value, length) in enumerate(zip(values, lengths, strict=True)):
        text = format_quantity(value) if name == "params" and value == value else format_score(name, value)
        axes.annotate(text, (length, row), (5, 0), textcoords="offset points", va="center", fontsize=10, color=INK)
    style_axes(axes, axis_label(name))
    axes.grid(False, axis="y")
    axes.set_xlim(0, 1.25 * max(*lengths, 1e-9))
    if name == "params":
        quantity_ticks(axes, 4)
    else:
        axes.set_xticks(range(0, 101, 20))


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [plain(name, 40) for name in names])
    axes.tick_params(axis="y", labelsize=10, labelcolor=INK)


def finalist_rows(run: RunContents) -> list[ModelResult]:
    """The measured candidates, the best by score first; the winner is named so.

    Each has the score of the search, and its latency as predicted and as measured; so its memory, where that has a
    limit.
    """
    rows = []
    for number, finalist in enumerate(run.latency.finalists if run.latency else [], 1):
        won = run.winner is not None and finalist.arch == run.winner.arch
        model = ModelResult("winner" if won else f"number {number}", finalist.arch)
        scores: dict[str, float | None] = {run.score: run.score_of(model)}
        for cost in finalist_costs(run):
            scores[f"predicted_{cost}"] = getattr(finalist, cost)
            scores[f"measured_{cost}"] = getattr(finalist, f"measured_{cost}")
        finite = {name: value for name, value in scores.items() if value is not None and not math.isnan(value)}
        rows.append(model.with_scores(finite))
    return rows


def finalist_costs(run: RunContents) -> list[str]:
    return ["latency_ms", *(name for name in run.limits if name == "memory_bytes")]


def finalists(run: RunContents) -> Figure | None:
    """What was predicted of each finalist, what was measured, and the budget; a panel for each cost."""
    rows = finalist_rows(run)
    costs = [cost for cost in finalist_costs(run) if rows and all(f"measured_{cost}" in row.scores for row in rows)]
    if not costs:
        return None
    figure = new_figure(2.4 + 5.6 * len(costs), 1.6 + 0.36 * len(rows))
    panels = figure.subplots(1, len(costs), squeeze=False, sharey=True)[0]
    for panel, cost in zip(panels, costs, strict=True):
        finalist_panel(panel, cost, rows, run.limits.get(cost, (None, None))[1])
    name_rows(panels[0], [row.name for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    legend_below(figure, panels)
    return figure


def finalist_panel(axes: Axes, cost: str, rows: Sequence[ModelResult], limit: float | None) -> None:
    indices = range(len(rows))
    predicted, measured = ([row[f"{kind}_{cost}"] for row in rows] for kind in ("predicted", "measured"))
    axes.hlines(indices, predicted, measured, color=GREY, lw=1.4, alpha=0.6, zorder=2)
    hollow: dict[str, Any] = {"facecolors": "white", "edgecolors": GREY, "linewidths": 1.6}
    axes.scatter(predicted, indices, s=58, zorder=3, label="predicted", **hollow)
    for index, row in enumerate(rows):
        won = row.name == "winner"
        shape, colour = marker_of(row.name) if won else ("o", BLUE)
        label, size = ("winner, measured", 210) if won else ("measured", 58)
        axes.scatter([measured[index]], [index], s=size, marker=shape, color=colour, lw=0, zorder=4, label=label)
    shown = [*predicted, *measured]
    if limit is not None:
        far = limit > FAR * max(shown)
        label = f"budget: {describe_limit(cost, None, limit)}{', off the plot' * far}"
        axes.axvline(limit, color=GREEN, lw=1.6, ls=(0, (4, 3)), zorder=1, label=label)
        shown += [] if far else [limit]
    room = 0.08 * (max(shown) - min(shown)) or 0.05 * abs(max(shown)) or math.ulp(1.0)
    axes.set_xlim(min(shown) - room, max(shown) + room)
    style_axes(axes, axis_label(cost))
    quantity_ticks(axes, 7)


# Cuts of a pretrained net: accuracy against latency and MACs, and what each block keeps

LATENCY = "measured_latency_ms"
FULL, UNIFORM, TIMM = "full net", "uniform", "timm:"
INHERITED = ", inherited weights"  # beside a winner that was trained on its own; such marks are hollow
MOST_NETS = 6  # that are drawn cut by cut
FIELDS = {"num_heads": "heads", "hidden_dim": "MLP neurons"}


def full_net(run: RunContents) -> ModelResult | None:
    """The net that was cut, if the run cut one."""
    return next(iter(run.references(FULL)), None)


def shown_score(run: RunContents) -> str:
    """The score that compares nets: the task's on test images where it is known, else agreement with the full net."""
    full = full_net(run)
    scores = [name for name in full.scores if name.removeprefix("test_") in task_scores()] if full else []
    return scores[0] if scores else "test_agreement"


def shipped_nets(run: RunContents) -> list[ModelResult]:
    """The winner and the further sizes as they are shipped, the largest first."""
    winner = [run.shipped] if run.shipped else []
    sizes = [size for size in run.sizes if not winner or size.arch != winner[0].arch]
    return sorted([*winner, *sizes], key=lambda model: -model.get("macs"))


def trade_off(run: RunContents) -> Figure | None:
    """Accuracy against measured latency and against MACs: the full net, what is shipped, uniform cut, timm models."""
    full, score = full_net(run), shown_score(run)
    if full is None or run.winner is None:
        return None
    costs = [cost for cost in (LATENCY, "macs") if math.isfinite(full.get(cost))]
    figure = new_figure(1.2 + 5.4 * len(costs), 4.6)
    panels = figure.subplots(1, len(costs), squeeze=False, sharey=True)[0]
    for panel, cost in zip(panels, costs, strict=True):
        draw_trade_off(panel, run, full, cost, score)
        style_axes(panel, axis_label(cost), axis_label(score) if panel is panels[0] else "")
        panel.xaxis.set_major_formatter(lambda value, _: format_quantity(value, 3))
        panel.set_xlim(left=0)
    legend_below(figure, panels)
    return figure


def draw_trade_off(axes: Axes, run: RunContents, full: ModelResult, cost: str, score: str) -> None:
    nets = [model for model in shipped_nets(run) if math.isfinite(model.get(score))]
    front = [(model.get(cost), axis_value(run.score, run.score_of(model))) for model in run.front]
    if cost == "macs" and front and score.endswith(run.score):
        style: dict[str, Any] = {"where": "post", "color": lighten(BLUE), "lw": 1.6}
        axes.step(*zip(*front, strict=True), **style, label="Pareto front of the search, inherited weights, held-out")
    path = [point(model, cost, score) for model in [full, *nets]]
    axes.plot(*zip(*path, strict=True), color=GREY, lw=1, zorder=2)
    untrained = [run.winner] if run.winner and run.winner is not run.shipped else []
    marks: dict[str, tuple[str, str, list[ModelResult]]] = {
        "full net": ("^", ORANGE, [full]),
        "further sizes": ("o", BLUE, [model for model in nets if model is not run.shipped]),
        f"uniform cut{INHERITED}": ("D", PURPLE, run.references(UNIFORM)[:1]),
        "timm models, fine-tuned": ("s", GREEN, run.references(TIMM)),
        f"winner{INHERITED}": ("*", RED, untrained),
        "winner": ("*", RED, [model for model in nets if model is run.shipped]),
    }
    for name, (shape, colour, models) in marks.items():
        marks_at = [at for at in (point(model, cost, score) for model in models) if all(map(math.isfinite, at))]
        if marks_at:
            x, y = zip(*marks_at, strict=True)
            size = 300 if shape == "*" else 80
            face, edge = ("white", colour) if name.endswith(INHERITED) else (colour, "white")
            axes.scatter(x, y, marker=shape, s=size, color=face, ec=edge, zorder=4, label=name)


def point(model: ModelResult, cost: str, score: str) -> Point:
    return model.get(cost), axis_value(score, model.get(score))


def cuts(run: RunContents) -> Figure | None:
    """What each block keeps of its heads and neurons: a row for each net, the full net's pale behind."""
    full, nets = full_net(run), [model for model in shipped_nets(run) if model.arch][:MOST_NETS]
    if full is None or not full.arch or not nets:
        return None
    whole = all_blocks(full)
    fields = [name for name in whole[0].fields if all(is_number(block.fields.get(name)) for block in whole)]
    if not fields or any(len(all_blocks(model)) != len(whole) for model in nets):
        return None
    figure = new_figure(1.5 + 5 * len(fields), 0.8 + 1.5 * len(nets))
    panels = figure.subplots(len(nets), len(fields), squeeze=False, sharex=True, sharey="col")
    for row, model in zip(panels, nets, strict=True):
        for panel, name in zip(row, fields, strict=True):
            draw_kept(panel, [block.fields[name] for block in whole], [b.fields[name] for b in all_blocks(model)])
            style_axes(panel)
        title = "winner" if model is run.shipped else format_quantity(model["macs"])
        row[0].set_ylabel(plain(f"{title}\n{model['macs'] / full['macs']:.0%} of MACs"), color=INK, fontsize=9)
    for panel, name in zip(panels[0], fields, strict=True):
        panel.set_title(plain(FIELDS.get(name, name.replace("_", " "))), color=INK, fontsize=11)
    for panel in panels[-1]:
        panel.set_xlabel("block", color=INK, fontsize=10)
    return figure


def all_blocks(model: ModelResult) -> list[Block]:
    return list(split_arch(model.arch).blocks())


def draw_kept(axes: Axes, whole: Sequence[Any], kept: Sequence[Any]) -> None:
    """A bar for each block before a pale one of what it had; a cross where the branch is left out."""
    blocks = range(1, len(whole) + 1)
    axes.bar(blocks, whole, color=lighten(GREY), width=0.8)
    axes.bar(blocks, kept, color=BLUE, width=0.8)
    left_out = [block for block, value in zip(blocks, kept, strict=True) if not value]
    axes.scatter(left_out, [0.08 * max(whole)] * len(left_out), marker="x", color=RED, s=36, zorder=3)
    axes.set_xticks(list(blocks))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))


# All figures of a report, by name

FIGURES: dict[str, Callable[[RunContents], Figure | None]] = {
    "trade_off": trade_off,
    "cuts": cuts,
    "bars": bars,
    "score_vs_cost": score_vs_cost,
    "search_progress": search_progress,
    "architecture": architectures,
    "operator_shares": operator_shares,
    "training_curve": training_curve,
    "operator_curves": operator_curves,
    "health": health,
    "finalists": finalists,
}


def plot(source: SearchResult | RunResult | RunContents | str | Path, figure: str = "") -> Picture:
    """A figure of a report, shown inline in notebooks.

    Args:
        source: What a search or a run has found, the folder of a run, or what `read_run` has read of it.
        figure: score_vs_cost, search_progress, architecture, training_curve, bars ...; without a name, the first of the
            report's.

    >>> from nasformer.search.run import search
    >>> from nasformer import Choice, Struct
    >>> space = Struct(width=Choice(1, 2, 3, 4), depth=Choice(1, 2, 3))
    >>> size, quality = lambda arch: {"params": arch.width}, lambda arch: {"accuracy": arch.depth / 4}
    >>> found = search(space, quality, size, strategy="random", options={"evaluations": 5})
    >>> plot(found, "search_progress").png[1:4]
    b'PNG'
    """
    if figure and figure not in FIGURES:
        raise UserError(f"there is no figure {figure!r}; there are: {', '.join(FIGURES)}")
    run = contents_of(source)
    drawn = (FIGURES[name](run) for name in ([figure] if figure else FIGURES))
    picture = next((draw_picture(drawing, {}) for drawing in drawn if drawing is not None), None)
    if picture is None:
        raise UserError(f"there is nothing to draw{f' as {figure}' if figure else ''} in {run!r}")
    return picture


def contents_of(source: SearchResult | RunResult | RunContents | str | Path) -> RunContents:
    if isinstance(source, SearchResult):
        return RunContents.of_search(source)
    if isinstance(source, RunResult):
        return RunContents(RunFolder(""), {"space": source.space, "data": source.data}, result=source)
    return source if isinstance(source, RunContents) else read_run(source)


# An evaluation as files: scores and confusion matrix as JSON, accuracy by class as CSV, the matrix as a figure.

NAMED, NUMBERED = 30, 20  # classes up to which each has its name at the axes, its counts in the cells


def write_confusion(confusion: Confusion, folder: Path, **about: Any) -> None:
    """Writes evaluation.html, evaluation.json, per_class.csv, confusion.png and confusion.svg."""
    content = {**about, **confusion.scores, "classes": list(confusion.classes)}
    content |= {"per_class": [asdict(score) for score in confusion.by_class], "confusion": confusion.counts.tolist()}
    write_text(folder / "evaluation.json", json.dumps(content) + "\n")
    write_csv(folder / "per_class.csv", [field.name for field in fields(ClassScore)], map(astuple, confusion.by_class))
    picture = save_picture(confusion_figure(confusion), folder / "confusion")
    write_text(folder / "evaluation.html", evaluation_page(confusion, picture, about))


def evaluation_page(confusion: Confusion, picture: Picture | None, about: Mapping[str, Any]) -> str:
    """The scores with the interval of the accuracy, which classes are taken for which, and each class."""
    scores, title = confusion.scores, f"nasformer: evaluation on {about.get('data') or 'images'}"
    low, high = wilson(scores["accuracy"], int(scores["images"]))
    numbers = [(f"{scores['accuracy']:.1%}", f"right, 95 % interval {100 * low:.1f} to {100 * high:.1f} %")]
    numbers += [(f"{scores['balanced_accuracy']:.1%}", "balanced accuracy"), (f"{scores['macro_f1']:.1%}", "macro-F1")]
    numbers += [(f"{scores['images']:,}", "images"), (f"{len(confusion.classes):,}", "classes")]
    head = ["class", "accuracy", "images", "right", "most often taken for"]
    rows = [
        html_row([score.name, shown, f"{score.images:,}", f"{score.correct:,}", score.mistaken_for or "–"], head=head)
        for score in confusion.by_class
        for shown in ["–" if score.accuracy is None else f"{score.accuracy:.1%}"]
    ]
    parts = [heading(title, **about), tiles(numbers)]
    parts += [html_figure("Confusion", "True classes down, guesses across.", picture)] if picture else []
    return document(title, [*parts, "<h2>Classes</h2>", html_table(head, rows, kind="text")])


def confusion_figure(confusion: Confusion) -> Figure:
    """True classes down, guesses across; shades by the logarithm of the count, so that rare mistakes show as well."""
    counts, size = confusion.counts.numpy(), len(confusion.classes)
    side = min(3.4 + 0.32 * size, 9.0)
    figure = new_figure(side + 0.9, side)
    axes = figure.subplots()
    norm = LogNorm(0.9, max(counts.max(), 2))
    image = axes.imshow(np.ma.masked_equal(counts, 0), cmap=BLUES, norm=norm, interpolation="nearest")
    style_axes(axes, "taken for", "true class")
    axes.grid(False)
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    name_classes(axes, confusion.classes)
    if size <= NUMBERED:
        number_cells(axes, counts, norm)
    scores = confusion.scores
    top5 = f", top-5 {scores['top5']:.1%}" if size > 5 else ""
    text = f"{scores['images']:,} images, {size} classes, top-1 {scores['accuracy']:.1%}{top5}"
    figure.supxlabel(text, fontsize=10, color=INK)
    add_scale(figure, axes, image)
    return figure


def name_classes(axes: Axes, classes: Sequence[str]) -> None:
    if len(classes) > NAMED:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    names = [plain(str(name), 18) for name in classes]
    axes.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) <= 2 else 90)
    axes.set_yticks(range(len(names)), names)


def number_cells(axes: Axes, counts: np.ndarray, norm: LogNorm) -> None:
    for row, column in zip(*np.nonzero(counts), strict=True):
        count = int(counts[row, column])
        colour = "white" if norm(count) > 0.4 else INK
        axes.text(column, row, str(count), ha="center", va="center", fontsize=8 if count < 1000 else 6, color=colour)


def add_scale(figure: Figure, axes: Axes, image: Any) -> None:
    scale = figure.colorbar(image, ax=axes, shrink=0.7, aspect=30, pad=0.02)
    scale.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    scale.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    scale.ax.yaxis.set_minor_locator(LogLocator(subs=()))
    style_colorbar(scale, "images")
