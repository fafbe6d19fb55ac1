"""How the operators of each stage fared in a search: their shares among its candidates, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.figure import Figure

from nasformer.report.anatomy import dissect
from nasformer.report.contents import Run
from nasformer.report.members import members, random_members
from nasformer.report.operators import Placed, operators, placed, together
from nasformer.report.stages import shares
from nasformer.report.steps import steps
from nasformer.report.style import GREY, INK, dress, legend_below, new_figure, pale, palette, plain
from nasformer.space import Arch

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
