"""The figure of the patterns: a panel for each choice that several stages make, winners beside random archs."""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nasformer.report.anatomy import WHOLE, ChoicesByStage, choice_names, is_number, shares, values_of
from nasformer.report.labels import label
from nasformer.report.operators import share_bar
from nasformer.utils.figures import GREY, INK, NICE, PURPLE, RED, dress, legend_below, new_figure, pale, palette, plain

if TYPE_CHECKING:
    from nasformer.report.patterns import Patterns

FIRST = ("blocks", "kernel", "ffn", "qkv_dim / embed_dim")
"""The choices that papers speak of come first."""
LABELS = {"blocks": "blocks", "ffn": "feed-forward halves", "qkv_dim / embed_dim": "q-k-v width / embedding"}
SIDE = 0.19  # from the middle of a stage to the middle of a bar


def patterns_figure(patterns: Patterns) -> Figure:
    """Shares of kinds as stacked bars, numbers as means with their standard deviation; stages from left to right."""
    together = patterns.together
    stages, names = [stage for stage in together if stage != WHOLE], plotted_names(together)
    rows = 1 if len(names) < 4 else 2
    columns = max(1, -(-len(names) // rows))
    figure = new_figure(1.2 + 3.6 * columns, 1.2 + 3.1 * rows)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    title = f"{patterns.title} beside {patterns.draws} random archs, budget: {patterns.budget}"
    figure.suptitle(plain(title), color=INK, fontsize=12)
    panels = figure.subplots(rows, columns, squeeze=False)
    kinds = [kind for name in names for kind in shares(values_of(together, name)) if not is_number(kind)]
    colours = palette(list(dict.fromkeys(map(str, kinds))))
    for axes, name in zip(panels.flat, names, strict=False):
        dress(axes, y=LABELS.get(name, label(name)))
        axes.set_xticks(range(len(stages)), [stage.replace("stage", "stage ") for stage in stages])
        axes.set_xlim(-0.6, len(stages) - 0.4)
        axes.grid(False, axis="x")
        if is_number(values_of(together, name)[0]):
            draw_means(axes, patterns, name, stages)
        else:
            draw_shares(axes, patterns, name, stages, colours)
    for spare in panels.flat[len(names) :]:
        spare.set_visible(False)
    legend_below(figure, panels.flat)
    return figure


def plotted_names(together: ChoicesByStage) -> list[str]:
    """The choices that two stages or more make; one alone shows no pattern."""

    def stages(name: str) -> int:
        return sum(stage != WHOLE and bool(values_of(together, name, stage)) for stage in together)

    several = [name for name in choice_names(together) if stages(name) > 1]
    return sorted(several, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def draw_shares(axes: Any, patterns: Patterns, name: str, stages: list[str], colours: dict[str, str]) -> None:
    """A stacked bar for the winners, their number above it, and a pale one for the random archs."""
    note = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 8, "color": GREY}
    softer = {kind: pale(colour) for kind, colour in colours.items()}
    for place, stage in enumerate(stages):
        winners, random = (values_of(choices, name, stage) for choices in (patterns.found, patterns.random))
        share_bar(axes, place - SIDE, winners, colours, 0.35, "white")
        share_bar(axes, place + SIDE, random, softer, 0.35, INK)
        if winners:
            axes.annotate(f"{len(winners)}", (place - SIDE, 1), (0, 2), **note)
        else:
            axes.annotate("none", (place, 0), (0, 4), **note)
    for kind in shares(values_of(patterns.together, name)):
        axes.bar([0], [0], color=colours[str(kind)], label=kind)
    axes.bar([0], [0], color=GREY, label="winners, how many above")
    axes.bar([0], [0], color=pale(GREY), label="random archs")
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])


def draw_means(axes: Any, patterns: Patterns, name: str, stages: list[str]) -> None:
    """Means with standard deviations, of the winners and of the random archs."""
    groups = (patterns.found, "o", RED, "winners"), (patterns.random, "D", PURPLE, "random archs")
    for side, (choices, marker, colour, words) in zip((-SIDE / 2, SIDE / 2), groups, strict=True):
        known = [(place, values_of(choices, name, stage)) for place, stage in enumerate(stages)]
        points = [(place + side, fmean(values), pstdev(values)) for place, values in known if values]
        if points:
            x, mean, spread = zip(*points, strict=True)
            text = f"{words}: mean, standard deviation"
            style = {"color": colour, "ms": 6, "capsize": 3, "elinewidth": 1.4, "zorder": 3}
            axes.errorbar(x, mean, spread, fmt=marker, label=text, **style)
            axes.plot(x, mean, color=colour, lw=1, alpha=0.5, zorder=2)
    if "/" in name:
        axes.axhline(1, color=GREY, lw=1, ls=(0, (4, 3)), zorder=1)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE))
