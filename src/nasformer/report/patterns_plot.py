"""One figure of the patterns: a panel for each thing that is decided in several stages, winners beside random archs."""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nasformer.report.anatomy import WHOLE, Reading, is_number, shares, values
from nasformer.report.labels import label
from nasformer.report.patterns import Patterns, names
from nasformer.utils.figures import GREY, INK, NICE, PURPLE, RED, dress, legend_below, new_figure, pale, palette, plain

FIRST = ("blocks", "kernel", "ffn", "qkv_dim / embed_dim")
"""What the papers speak of comes first."""
WORDS = {"blocks": "blocks", "ffn": "feed-forward halves", "qkv_dim / embed_dim": "q-k-v width / embedding"}
SIDE = 0.19  # from the middle of a stage to the middle of a bar or mark


def patterns_figure(patterns: Patterns) -> Figure:
    """Shares of kinds as stacked bars, numbers as means with their standard deviation; stages from left to right."""
    together = patterns.together
    stages, shown = [stage for stage in together if stage != WHOLE], panels_of(together)
    rows = 1 if len(shown) < 4 else 2
    columns = max(1, -(-len(shown) // rows))
    figure = new_figure(1.2 + 3.6 * columns, 1.2 + 3.1 * rows)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    count = f"{patterns.winners} winner{'s' * (patterns.winners > 1)}"
    title = f"{count} of {patterns.space} beside {patterns.draws} random archs, budget: {patterns.budget}"
    figure.suptitle(plain(title), color=INK, fontsize=12)
    panels = figure.subplots(rows, columns, squeeze=False)
    colours = colours_of(together, shown)
    for axes, name in zip(panels.flat, shown, strict=False):
        numbers = is_number(_all(together, name)[0])
        (_marks if numbers else _bars)(axes, patterns, name, stages, colours)
        dress(axes, y=WORDS.get(name, label(name)))
        _finish(axes, stages, numbers)
    for spare in panels.flat[len(shown) :]:
        spare.set_visible(False)
    legend_below(figure, panels.flat)
    return figure


def panels_of(together: Reading) -> list[str]:
    """What is decided in two stages or more; one alone shows no pattern."""
    several = [name for name in names(together) if _stages(together, name) > 1]
    return sorted(several, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def _stages(reading: Reading, name: str) -> int:
    return sum(stage != WHOLE and bool(values(reading, stage, name)) for stage in reading)


def _all(reading: Reading, name: str) -> list[Any]:
    return [value for stage in reading for value in values(reading, stage, name)]


def colours_of(together: Reading, shown: list[str]) -> dict[Any, str]:
    """One colour for each kind, the same in all panels."""
    kinds = [str(kind) for name in shown for kind in shares(_all(together, name)) if not is_number(kind)]
    return palette(list(dict.fromkeys(kinds)))


def _bars(axes: Any, patterns: Patterns, name: str, stages: list[str], colours: dict[Any, str]) -> None:
    for place, stage in enumerate(stages):
        for side, reading in ((-SIDE, patterns.found), (SIDE, patterns.random)):
            found, theirs = values(reading, stage, name), reading is patterns.random
            _stack(axes, place + side, shares(found), colours, theirs)
            if found and not theirs:  # how much stands behind the shares
                axes.annotate(f"{len(found)}", (place + side, 1), (0, 2), **_note(GREY), va="bottom")
            elif not found and not theirs:
                axes.annotate("none", (place, 0), (0, 4), **_note(GREY), va="bottom")
    for kind, colour in colours.items():
        if kind in _all(patterns.together, name):
            axes.bar([0], [0], color=colour, label=kind)
    axes.bar([0], [0], color=GREY, label="winners, how many above")
    axes.bar([0], [0], color=pale(GREY), label="random archs")


def _stack(axes: Any, x: float, found: dict[Any, float], colours: dict[Any, str], soft: bool) -> None:
    bottom = 0.0
    for kind in [kind for kind in colours if kind in found]:
        share = found[kind]
        colour = pale(colours[kind]) if soft else colours[kind]
        axes.bar([x], [share], 0.35, bottom, color=colour, edgecolor="white", lw=0.8, zorder=3)
        if share >= 0.12:
            ink = INK if soft else "white"
            axes.annotate(f"{100 * share:.0f}", (x, bottom + share / 2), (0, 0), **_note(ink), va="center", zorder=5)
        bottom += share


def _note(colour: str) -> dict[str, Any]:
    return {"textcoords": "offset points", "ha": "center", "fontsize": 8, "color": colour}


def _marks(axes: Any, patterns: Patterns, name: str, stages: list[str], colours: dict[Any, str]) -> None:
    looks = ((-SIDE / 2, patterns.found, "o", RED, "winners"), (SIDE / 2, patterns.random, "D", PURPLE, "random archs"))
    for side, reading, marker, colour, words in looks:
        known = [(place, values(reading, stage, name)) for place, stage in enumerate(stages)]
        points = [(place + side, fmean(found), pstdev(found)) for place, found in known if found]
        if points:
            x, mean, spread = zip(*points, strict=True)
            text = f"{words}: mean, standard deviation"
            style = {"color": colour, "ms": 6, "capsize": 3, "elinewidth": 1.4, "zorder": 3}
            axes.errorbar(x, mean, spread, fmt=marker, label=text, **style)
            axes.plot(x, mean, color=colour, lw=1, alpha=0.5, zorder=2)
    if "/" in name:
        axes.axhline(1, color=GREY, lw=1, ls=(0, (4, 3)), zorder=1)


def _finish(axes: Any, stages: list[str], numbers: bool) -> None:
    axes.set_xticks(range(len(stages)), [stage.replace("stage", "stage ") for stage in stages])
    axes.set_xlim(-0.6, len(stages) - 0.4)
    axes.grid(False, axis="x")
    if numbers:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE))
    else:
        axes.set_ylim(0, 1.08)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
