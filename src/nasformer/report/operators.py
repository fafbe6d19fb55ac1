"""Operators of a net whose blocks choose among several: their shares in a search, and how each does in the supernet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nasformer.report.drawing import OperatorsByStage, dissect, merge_stages, operators, operators_by_stage, shares
from nasformer.report.labels import axis_label
from nasformer.results.contents import RunContents, thinned
from nasformer.space.arch import Arch
from nasformer.train.log import read_snapshots
from nasformer.utils.figures import GREY, INK, dress, legend_below, new_figure, nice_ticks, pale, palette, plain
from nasformer.utils.schema import from_json

# Shares of the operators among the candidates, as the search went on

FEWEST = 20  # random archs, for shares that mean something
COLUMNS, SAMPLED = 50, 10_000  # more generations are drawn together, more candidates are sampled
BAR, ASIDE = 0.2, 0.26  # of the width that the search takes: the bars beside it, and how far away they stand
TICKS = 5


def operator_shares(run: RunContents) -> Figure | None:
    """A panel for each stage: random archs, the candidates of every generation, and the winner."""
    every = run.extremes() or [candidate.arch for candidate in thinned(run.candidates, SAMPLED)]
    colours = palette(operators(dissect(arch.to_dict()) for arch in every))
    if not run.candidates or len(colours) < 2:
        return None
    columns, unit = operators_by_generation(run)
    random_archs = run.random_members()
    random = count_operators(random_archs) if len(random_archs) >= FEWEST else {}
    winner = operators_by_stage(dissect(run.winner.arch)) if run.winner else {}
    stages = list(merge_stages(columns.values()))
    figure = new_figure(1.2 + 2.5 * len(stages), 3.6)
    figure.get_layout_engine().set(w_pad=0.08)  # type: ignore[union-attr, call-arg]
    panels = figure.subplots(1, len(stages), sharey=True, squeeze=False)[0]
    for axes, stage in zip(panels, stages, strict=True):
        course = {number: column.get(stage, []) for number, column in columns.items()}
        share_panel(axes, course, random.get(stage, []), winner.get(stage, []), colours)
        axes.set_title(plain(stage, 30), color=INK, fontsize=11)
        axes.set_xlabel(unit, color=INK, fontsize=10)
    for name, colour in colours.items():
        panels[0].bar([0], [0], color=colour, label=name)
    panels[0].set_ylabel("share of the blocks", color=INK, fontsize=10)
    legend_below(figure, panels)
    return figure


def operators_by_generation(run: RunContents) -> tuple[dict[int, OperatorsByStage], str]:
    """The operators of each generation, or of several together, by the first of them; and what the numbers count."""
    generations, unit = run.generations()
    together = -(-len(generations) // COLUMNS)
    groups = [generations[start : start + together] for start in range(0, len(generations), together)]
    columns = {}
    for group in groups:
        candidates = thinned([candidate for _, members in group for candidate in members], SAMPLED // len(groups))
        columns[group[0][0]] = count_operators(candidate.arch for candidate in candidates)
    return columns, unit


def count_operators(archs: Iterable[Arch]) -> OperatorsByStage:
    return merge_stages(operators_by_stage(dissect(arch.to_dict())) for arch in archs)


def share_panel(
    axes: Any, course: Mapping[int, list[str]], random: list[str], winner: list[str], colours: dict[str, str]
) -> None:
    count, every = len(course), -(-len(course) // TICKS)
    for place, names in enumerate(course.values()):
        share_bar(axes, (place + 0.5) / count, names, colours, 1 / count)
    share_bar(axes, -ASIDE, random, {name: pale(colour) for name, colour in colours.items()}, BAR, INK)
    share_bar(axes, 1 + ASIDE, winner, colours, BAR, "white")
    ticks = {(place + 0.5) / count: str(number) for place, number in enumerate(course) if place % every == 0}
    ticks |= {-ASIDE: "random"} if random else {}
    ticks |= {1 + ASIDE: "winner"} if winner else {}
    dress(axes)
    axes.grid(False)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
    axes.tick_params(colors=GREY, labelsize=8)


def share_bar(axes: Any, x: float, names: list[str], colours: dict[str, str], width: float, ink: str = "") -> None:
    """A stacked bar of the shares; with `ink`, they stand in it in percent."""
    bottom, share_of = 0.0, shares(names)
    for name in [name for name in colours if name in share_of]:
        share, colour = share_of[name], colours[name]
        axes.bar([x], [share], width, bottom, color=colour, edgecolor="white" if ink else colour, lw=0.3, zorder=3)
        if ink and share >= 0.08:
            style = {"ha": "center", "va": "center", "fontsize": 8, "color": ink, "zorder": 5}
            axes.text(x, bottom + share / 2, f"{100 * share:.0f}", **style)
        bottom += share


# Accuracy of the largest net of each single operator while a supernet is trained. Colours are operators and dashes are
# trainings, so that trainings can be compared; seeds are thin, their mean is thick.

DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
Logs = Mapping[str, Path | Sequence[Path]]
"""Label of a training -> its log, or those of its seeds."""
Curve = dict[float, float]
"""Epoch -> accuracy."""


@dataclass(frozen=True)
class WatchLine:
    """A line of a training log with the accuracies of watched nets."""

    epoch: float
    watch: dict[str, float]


def operator_curves(run: RunContents) -> Figure | None:
    """The curves of a run's supernet; None unless nets were watched."""
    return operator_panels({"": {"": run.folder.log}}, run.metric)


def operator_panels(panels: Mapping[str, Logs], metric: str = "accuracy") -> Figure | None:
    """Comparisons side by side, such as ablations, by title; None where no nets were watched."""
    curves = {title: read_trainings(logs) for title, logs in panels.items()}
    seeds = [seed for trainings in curves.values() for training in trainings.values() for seed in training]
    colours = palette(list(dict.fromkeys(name for seed in seeds for name in seed)))
    if not colours:
        return None
    single = len(panels) == 1
    figure = new_figure(7 if single else 0.6 + 3.7 * len(panels), 4.4 if single else 3.9)
    figure.get_layout_engine().set(w_pad=0.08)  # type: ignore[union-attr, call-arg]
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, trainings) in zip(every, curves.items(), strict=True):
        curve_panel(axes, trainings, colours)
        dress(axes, "epoch", axis_label(f"holdout_{metric}") if axes is every[0] else "")
        axes.set_title(plain(title, 60), color=INK, fontsize=11)
        axes.xaxis.set_major_locator(nice_ticks(8, integer=True))
    for name, colour in colours.items():
        every[0].add_line(Line2D([], [], color=colour, lw=2, label=plain(name, 30)))
    legend_below(figure, every)
    return figure


def read_trainings(logs: Logs) -> dict[str, list[dict[str, Curve]]]:
    paths = {label: [given] if isinstance(given, Path) else given for label, given in logs.items()}
    return {label: [read_curves(path) for path in seeds] for label, seeds in paths.items()}


def read_curves(path: Path) -> dict[str, Curve]:
    """The accuracies of watched nets, by name. Should epochs come twice, the last counts."""
    curves: dict[str, Curve] = {}
    for record in read_snapshots(path):
        line = from_json(WatchLine, record, path)
        for name, accuracy in line.watch.items():
            curves.setdefault(name, {})[line.epoch] = accuracy
    return curves


def curve_panel(axes: Any, trainings: Mapping[str, list[dict[str, Curve]]], colours: Mapping[str, str]) -> None:
    for number, (label, seeds) in enumerate(trainings.items()):
        dashes = DASHES[number % len(DASHES)]
        for name, colour in colours.items():
            curves = [seed[name] for seed in seeds if name in seed]
            for curve in curves if len(curves) > 1 else []:
                draw_curve(axes, curve, color=colour, ls=dashes, lw=0.8, alpha=0.45)
            draw_curve(axes, mean_curve(curves), color=colour, ls=dashes, lw=2)
        if label:
            axes.add_line(Line2D([], [], color=GREY, ls=dashes, lw=2, label=plain(label, 40)))


def mean_curve(seeds: Sequence[Curve]) -> Curve:
    """The mean over the epochs that all seeds have.

    >>> mean_curve([{1: 0.25, 2: 0.5, 3: 1.0}, {1: 0.75, 2: 0.5}])
    {1: 0.5, 2: 0.5}
    """
    shared = set.intersection(*map(set, seeds)) if seeds else set()
    return {epoch: fmean(seed[epoch] for seed in seeds) for epoch in sorted(shared)}


def draw_curve(axes: Any, curve: Curve, **style: Any) -> None:
    points = [(epoch, 100 * value) for epoch, value in sorted(curve.items()) if math.isfinite(value)]
    if points:
        single = {"marker": "o", "ms": 4} if len(points) == 1 else {}
        axes.plot(*zip(*points, strict=True), **style, **single)
