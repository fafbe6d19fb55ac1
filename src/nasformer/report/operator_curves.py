"""How well each operator does while a supernet is trained: the accuracy of its largest pure net, look by look.

Colours are operators and dashes are trainings, so that trainings can be compared; seeds are thin, their mean is thick.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nasformer.errors import UserError
from nasformer.report.contents import REPAIR, Run
from nasformer.report.style import GREY, INK, NICE, dress, legend_below, new_figure, palette, plain
from nasformer.train.log import watched

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
        _panel(axes, trainings, colours)
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
    for line in watched(path):
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


def _panel(axes: Any, trainings: Mapping[str, list[dict[str, Curve]]], colours: Mapping[str, str]) -> None:
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
