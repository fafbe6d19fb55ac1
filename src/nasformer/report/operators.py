"""How the operators of each stage fared in a search: their shares among its candidates, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nasformer.errors import UserError
from nasformer.report.anatomy import Placed, dissect, operators, placed, shares, together
from nasformer.report.contents import REPAIR, Run, members, random_members, steps
from nasformer.space.arch import Arch
from nasformer.train.log import read_snapshots
from nasformer.utils.figures import GREY, INK, NICE, dress, legend_below, new_figure, pale, palette, plain

FEWEST = 20  # random archs, for shares that mean something
WIDE, ASIDE = 0.2, 0.26  # of the width that the search takes: a column beside it, and how far from it that stands
TICKS = 5


def operator_shares(run: Run) -> Figure | None:
    """A panel a stage: random archs, the candidates of every generation, and the winner."""
    known = members(run) or [candidate.arch for candidate in run.candidates]  # the members have every operator
    colours = palette(operators(dissect(arch.to_dict()) for arch in known))
    if not run.candidates or len(colours) < 2:
        return None
    course, unit = steps(run)
    columns = {at: _placed(candidate.arch for candidate in found) for at, found in course}
    drawn, winner = random_members(run), placed(dissect(run.winner.arch)) if run.winner else {}
    random = _placed(drawn) if len(drawn) >= FEWEST else {}
    stages = list(together(columns.values()))
    figure = new_figure(1.2 + 2.5 * len(stages), 3.6)
    figure.get_layout_engine().set(w_pad=0.08)  # type: ignore[union-attr, call-arg]
    panels = figure.subplots(1, len(stages), sharey=True, squeeze=False)[0]
    for axes, stage in zip(panels, stages, strict=True):
        course_here = {at: column.get(stage, []) for at, column in columns.items()}
        _panel(axes, course_here, random.get(stage, []), winner.get(stage, []), colours)
        axes.set_title(plain(stage, 30), color=INK, fontsize=11)
        axes.set_xlabel(unit, color=INK, fontsize=10)
    for name, colour in colours.items():
        panels[0].bar([0], [0], color=colour, label=name)
    panels[0].set_ylabel("share of the blocks", color=INK, fontsize=10)
    legend_below(figure, panels)
    return figure


def _placed(archs: Iterable[Arch]) -> Placed:
    return together(placed(dissect(arch.to_dict())) for arch in archs)


def _panel(
    axes: Any, course: Mapping[int, list[str]], random: list[str], winner: list[str], colours: dict[str, str]
) -> None:
    count, every = len(course), -(-len(course) // TICKS)
    for place, found in enumerate(course.values()):
        _stack(axes, (place + 0.5) / count, found, colours, 1 / count)
    _stack(axes, -ASIDE, random, {name: pale(colour) for name, colour in colours.items()}, WIDE, INK)
    _stack(axes, 1 + ASIDE, winner, colours, WIDE, "white")
    ticks = {(place + 0.5) / count: str(at) for place, at in enumerate(course) if place % every == 0}
    ticks |= {-ASIDE: "random"} if random else {}
    ticks |= {1 + ASIDE: "winner"} if winner else {}
    dress(axes)
    axes.grid(False)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
    axes.tick_params(colors=GREY, labelsize=8)


def _stack(axes: Any, x: float, found: list[str], colours: dict[str, str], width: float, ink: str = "") -> None:
    """One column; with `ink`, in percent."""
    bottom, known = 0.0, shares(found)
    for name in [name for name in colours if name in known]:
        share, colour = known[name], colours[name]
        axes.bar([x], [share], width, bottom, color=colour, edgecolor="white" if ink else colour, lw=0.3, zorder=3)
        if ink and share >= 0.08:
            style = {"ha": "center", "va": "center", "fontsize": 8, "color": ink, "zorder": 5}
            axes.text(x, bottom + share / 2, f"{100 * share:.0f}", **style)
        bottom += share


# ----------------------------------------------------------------------------------------------------------------------
# How well each operator does while a supernet is trained: the accuracy of its largest pure net, look by look.
#
# Colours are operators and dashes are trainings, so that trainings can be compared; seeds are thin, their mean is
# thick.
# ----------------------------------------------------------------------------------------------------------------------

DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
Logs = Mapping[str, Path | Sequence[Path]]
"""Label of a training -> its log, or those of its seeds."""
Curve = dict[float, float]
"""Epoch -> accuracy."""


def supernet_curves(run: Run) -> Figure | None:
    """The curves of the run's own supernet; none unless it was watched."""
    return operator_curves({"": run.folder / "train" / "log.jsonl"})


def operator_curves(logs: Logs) -> Figure | None:
    """Trainings in one panel; None without a look at any of them.

    Args:
        logs: Paths of train/log.jsonl by the label of the training. Several paths are seeds of one training.
    """
    return operator_panels({"": logs})


def operator_panels(panels: Mapping[str, Logs]) -> Figure | None:
    """Comparisons side by side, each with a title: an ablation a panel."""
    known = {title: _trainings(logs) for title, logs in panels.items()}
    seeds = [seed for trainings in known.values() for training in trainings.values() for seed in training]
    colours = palette(list(dict.fromkeys(name for seed in seeds for name in seed)))
    if not colours:
        return None
    single = len(panels) == 1
    figure = new_figure(7 if single else 0.6 + 3.7 * len(panels), 4.4 if single else 3.9)
    figure.get_layout_engine().set(w_pad=0.08)  # type: ignore[union-attr, call-arg]
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, trainings) in zip(every, known.items(), strict=True):
        _curve_panel(axes, trainings, colours)
        dress(axes, "epoch", "held-out accuracy (%)" if axes is every[0] else "")
        axes.set_title(plain(title, 60), color=INK, fontsize=11)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=NICE))
    for name, colour in colours.items():
        every[0].add_line(Line2D([], [], color=colour, lw=2, label=plain(name, 30)))
    legend_below(figure, every)
    return figure


def curves(path: Path) -> dict[str, Curve]:
    """What the looks at a supernet saw, by the name of the arch. Should epochs come twice, the last counts."""
    found: dict[str, Curve] = {}
    for line in read_snapshots(path):
        try:
            epoch = float(line["epoch"])
            for name, accuracy in line["watch"].items():
                found.setdefault(str(name), {})[epoch] = float(accuracy)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(f"{path} is damaged (not a look at accuracies by epoch: {line}); {REPAIR}") from None
    return found


def mean(seeds: Sequence[Curve]) -> Curve:
    """The mean over the epochs that all have.

    >>> mean([{1: 0.25, 2: 0.5, 3: 1.0}, {1: 0.75, 2: 0.5}])
    {1: 0.5, 2: 0.5}
    """
    shared = set.intersection(*map(set, seeds)) if seeds else set()
    return {epoch: fmean(seed[epoch] for seed in seeds) for epoch in sorted(shared)}


def _trainings(logs: Logs) -> dict[str, list[dict[str, Curve]]]:
    paths = {label: [given] if isinstance(given, Path) else list(given) for label, given in logs.items()}
    return {label: [curves(path) for path in own] for label, own in paths.items()}


def _curve_panel(axes: Any, trainings: Mapping[str, list[dict[str, Curve]]], colours: Mapping[str, str]) -> None:
    for number, (label, seeds) in enumerate(trainings.items()):
        dashes = DASHES[number % len(DASHES)]
        _training(axes, seeds, colours, dashes)
        if label:
            axes.add_line(Line2D([], [], color=GREY, ls=dashes, lw=2, label=plain(label, 40)))


def _training(axes: Any, seeds: Sequence[dict[str, Curve]], colours: Mapping[str, str], dashes: Any) -> None:
    for name, colour in colours.items():
        own = [seed[name] for seed in seeds if name in seed]
        if len(own) > 1:
            for curve in own:
                _line(axes, curve, color=colour, ls=dashes, lw=0.8, alpha=0.45)
        _line(axes, mean(own), color=colour, ls=dashes, lw=2)


def _line(axes: Any, curve: Curve, **style: Any) -> None:
    points = [(epoch, 100 * value) for epoch, value in sorted(curve.items()) if math.isfinite(value)]
    if points:
        dots = {"marker": "o", "ms": 4} if len(points) == 1 else {}
        axes.plot(*zip(*points, strict=True), **style, **dots)
