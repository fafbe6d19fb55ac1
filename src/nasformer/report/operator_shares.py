"""How the operators of each stage fared in a search: their shares among its candidates, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure

from nasformer.report.anatomy import dissect
from nasformer.report.contents import Run
from nasformer.report.operators import Placed, operators, placed, together
from nasformer.report.stages import shares
from nasformer.report.steps import steps
from nasformer.report.style import GREY, INK, dress, legend_below, new_figure, pale, palette
from nasformer.space import Arch

DRAWN = ("random", "start")  # origins of candidates that the search drew by chance
FEWEST = 10  # random archs, for shares that mean something
ASIDE = 1.0  # between the columns of the search and those beside it
TICKS = 5


def operator_shares(run: Run) -> Figure | None:
    """A panel a stage: the random archs, the candidates of every generation, and the winner."""
    anatomies = [dissect(candidate.arch.to_dict()) for candidate in run.candidates]
    names = operators(anatomies)
    if len(names) < 2:
        return None
    colours = palette(names)
    course, unit = steps(run)
    columns = [_placed(candidate.arch for candidate in found) for _, found in course]
    random, winner = _random(run), placed(dissect(run.winner.arch)) if run.winner else {}
    stages = list(together(columns))
    figure = new_figure(1.2 + 2.5 * len(stages), 3.4)
    panels = figure.subplots(1, len(stages), sharey=True, squeeze=False)[0]
    for axes, stage in zip(panels, stages, strict=True):
        for place, column in enumerate(columns):
            _stack(axes, place, column.get(stage, []), colours, 1.0)
        _beside(axes, stage, random, winner, len(columns), colours)
        _finish(axes, stage, [at for at, _ in course], bool(random), bool(winner))
    for name, colour in colours.items():
        panels[0].bar([0], [0], color=colour, label=name)
    panels[0].set_ylabel("share of the blocks", color=INK, fontsize=10)
    figure.supxlabel(unit, color=INK, fontsize=10)
    legend_below(figure, panels)
    return figure


def _placed(archs: Iterable[Arch]) -> Placed:
    return together(placed(dissect(arch.to_dict())) for arch in archs)


def _random(run: Run) -> Placed:
    drawn = [candidate.arch for candidate in run.candidates if candidate.origin in DRAWN]
    return _placed(drawn) if len(drawn) >= FEWEST else {}


def _beside(axes: Any, stage: str, random: Placed, winner: Placed, count: int, colours: dict[str, str]) -> None:
    """What the shares of the search are to be compared with: where it came from, and where it went to."""
    wide = max(1.0, count / 8)
    softer = {name: pale(colour) for name, colour in colours.items()}
    _stack(axes, -ASIDE - wide / 2, random.get(stage, []), softer, wide, numbers=True)
    _stack(axes, count - 1 + ASIDE + wide / 2, winner.get(stage, []), colours, wide, numbers=True)


def _stack(
    axes: Any, x: float, found: list[str], colours: dict[str, str], width: float, *, numbers: bool = False
) -> None:
    bottom, known = 0.0, shares(found)
    for name, colour in colours.items():
        share = known.get(name, 0.0)
        axes.bar([x], [share], width, bottom, color=colour, edgecolor="white" if numbers else colour, lw=0.3, zorder=3)
        if numbers and share >= 0.08:
            style = {"ha": "center", "va": "center", "fontsize": 8, "color": INK, "zorder": 5}
            axes.text(x, bottom + share / 2, f"{100 * share:.0f}", **style)
        bottom += share


def _finish(axes: Any, stage: str, numbers: Sequence[int], random: bool, winner: bool) -> None:
    dress(axes)
    axes.grid(False)
    axes.set_title(stage, color=INK, fontsize=11)
    wide, last = max(1.0, len(numbers) / 8), len(numbers) - 1
    every = -(-len(numbers) // TICKS)
    ticks: dict[float, str] = {place: str(numbers[place]) for place in range(0, len(numbers), every)}
    if random:
        ticks[-ASIDE - wide / 2] = "random"
    if winner:
        ticks[last + ASIDE + wide / 2] = "winner"
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
    axes.tick_params(colors=GREY, labelsize=8)
