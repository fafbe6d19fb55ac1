"""Cuts of a pretrained net: accuracy against latency and MACs, the table of gains, and what each block keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nasformer.report.architectures import Block, is_number, split_arch
from nasformer.report.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    axis_label,
    axis_value,
    format_score,
    label,
    legend_below,
    lighten,
    new_figure,
    plain,
    style_axes,
)
from nasformer.results.contents import RunContents
from nasformer.search.problem import ModelResult
from nasformer.tasks.options import task_scores
from nasformer.utils.tables import html_row, html_table
from nasformer.utils.units import format_quantity

LATENCY = "measured_latency_ms"
FULL, UNIFORM, TIMM = "full net", "uniform", "timm:"
INHERITED = ", inherited weights"  # beside a winner that was trained on its own; such marks are hollow
MOST_NETS = 6  # that are drawn cut by cut
FIELDS = {"num_heads": "heads", "hidden_dim": "MLP neurons"}
Point = tuple[float, float]


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


# Accuracy against latency and MACs


def trade_off(run: RunContents) -> Figure | None:
    """The full net, what the run ships, the uniform cut and models of timm: accuracy against measured latency, and
    against MACs.
    """
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
        points = [at for at in (point(model, cost, score) for model in models) if all(map(math.isfinite, at))]
        if points:
            x, y = zip(*points, strict=True)
            size = 300 if shape == "*" else 80
            face, edge = ("white", colour) if name.endswith(INHERITED) else (colour, "white")
            axes.scatter(x, y, marker=shape, s=size, color=face, ec=edge, zorder=4, label=name)


def point(model: ModelResult, cost: str, score: str) -> Point:
    return model.get(cost), axis_value(score, model.get(score))


# What is given up, and what is gained


def gains(run: RunContents) -> str:
    """The table "give up x points, gain y ms", and how latency was measured."""
    full, score = full_net(run), shown_score(run)
    nets = [model for model in shipped_nets(run) if math.isfinite(model.get(score))]
    if full is None or not nets:
        return ""
    timed = math.isfinite(full.get(LATENCY))
    head = ["net", label(score), "given up", "MACs", "of the full net's", "folder"]
    head[3:3] = ["latency", "gained", "times as fast"] if timed else []
    rows = [html_row([FULL, *numbers(full, full, score, timed), ""], head=["", *head[1:]])]
    for model in nets:
        kind, folder = ("winner", "model") if model is run.shipped else ("", f"{model.name}/model")
        name = "winner" if model is run.shipped else format_quantity(model["macs"])
        rows.append(html_row([name, *numbers(model, full, score, timed), folder], kind=kind, head=["", *head[1:]]))
    for model in run.references(TIMM):
        rows.append(html_row([model.name, *numbers(model, full, score, timed), ""], head=["", *head[1:]]))
    how = f"<p>Latency: {escape(run.timing)}.</p>" if run.timing and timed else ""
    return f"<h2>What you give up, and what you gain</h2>\n{html_table(head, rows)}\n{uniform_in_words(run)}\n{how}"


def uniform_in_words(run: RunContents) -> str:
    """How the uniform cut compares with the winner, both as the search left them: neither trained on its own."""
    score, uniform = shown_score(run), next(iter(run.references(UNIFORM)), None)
    if run.winner is None or uniform is None or not math.isfinite(uniform.get(score)):
        return ""
    found, even = (format_score(score, model.get(score)) for model in (run.winner, uniform))
    before = "" if run.winner is run.shipped else " before its own training"
    words = f"Is it the search? The winner has {found} {label(score)}{before}, a uniform cut within the budget {even}."
    return f"<p>{escape(words)}</p>"


def numbers(model: ModelResult, full: ModelResult, score: str, timed: bool) -> Iterator[str]:
    """The cells of a net beside the full net."""
    lost = 100 * (full.get(score) - model.get(score))
    yield format_score(score, model.get(score))
    yield "" if model is full else f"{lost:+.1f} points".replace("+", "") if lost > 0 else f"none ({-lost:+.1f})"
    if timed and not math.isfinite(model.get(LATENCY)):
        yield from ("", "", "")
    elif timed:
        yield f"{model.get(LATENCY):.3g} ms"
        yield "" if model is full else f"{full[LATENCY] - model.get(LATENCY):.3g} ms"
        yield "" if model is full else f"{full[LATENCY] / model.get(LATENCY):.2f}"
    yield format_quantity(model["macs"])
    yield f"{model['macs'] / full['macs']:.0%}"


# What was cut where


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
