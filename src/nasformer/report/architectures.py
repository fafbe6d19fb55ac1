"""Architectures drawn side by side: a card for each, a row for each layer, a bar for each field.

Where blocks choose among operators, a row is a box in the colour of the operator, since fields then differ by row; and
further figures show the operators by stage.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, TypeGuard

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Rectangle

from nasformer.report.style import (
    CHOSEN,
    FAINT,
    GREY,
    INK,
    PALETTE,
    RED,
    axis_label,
    describe_costs,
    legend_below,
    lighten,
    new_figure,
    nice_ticks,
    palette,
    plain,
    style_axes,
)
from nasformer.results.contents import RunContents, thinned
from nasformer.search.problem import ModelResult
from nasformer.space.arch import Arch
from nasformer.space.nodes import Scalar
from nasformer.train.log import read_snapshots
from nasformer.utils.schema import from_json

# Architectures split into blocks. This needs the architecture alone, so it works for spaces that are no longer known.


@dataclass(frozen=True)
class Block:
    """A layer; `kind` is the option of its OneOf, or empty."""

    kind: str
    fields: Mapping[str, Scalar]

    @property
    def operator(self) -> str:
        """The kind; of a kind within a kind, such as an encoder with one of two feed-forward halves, the outer one."""
        return self.kind.partition(" ")[0]


@dataclass(frozen=True)
class ArchParts:
    """An architecture as single values and stacks of blocks, both by path.

    Numbered fields, such as the stage1, stage2 ... of depth and of num_heads, are a stack too: a block for each stage.
    """

    scalars: dict[str, Scalar] = field(default_factory=dict)
    stacks: dict[str, list[Block]] = field(default_factory=dict)

    def blocks(self) -> Iterable[Block]:
        return (block for stack in self.stacks.values() for block in stack)


def split_arch(arch: Mapping[str, Any]) -> ArchParts:
    """Takes an architecture apart.

    >>> parts = split_arch({"embed_dim": 192, "blocks": [{"num_heads": 3}, {"conv": {"kernel": 5}}]})
    >>> parts.scalars
    {'embed_dim': 192}
    >>> parts.stacks["blocks"]
    [Block(kind='', fields={'num_heads': 3}), Block(kind='conv', fields={'kernel': 5})]
    """
    parts = ArchParts()
    _walk(arch, "", parts)
    return parts


def _walk(value: Any, path: str, parts: ArchParts) -> None:
    if unit := _numbered(value):
        parent, dot, name = path.rpartition(".")
        _add_column(parts.stacks.setdefault(f"{parent}{dot}{unit}", []), name, value.values())
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            _walk(inner, f"{path}.{name}" if path else name, parts)
    elif isinstance(value, Mapping):  # an option without choices: its name says it all
        parts.scalars[path] = ""
    elif not _is_list(value):
        parts.scalars[path] = value
    elif any(_has_list(item) for item in value):  # stages, which have blocks of their own
        for number, item in enumerate(value, 1):
            _walk(item, f"{path} {number}", parts)
    else:
        parts.stacks[path] = [_block(item, path.rpartition(".")[2]) for item in value]


def _numbered(value: Any) -> str:
    """The common name of numbered fields: "stage" for stage1, stage2 ...; empty for other fields."""
    if not isinstance(value, Mapping) or len(value) < 2:
        return ""
    unit = str(next(iter(value))).removesuffix("1")
    simple = not any(isinstance(inner, Mapping) or _is_list(inner) for inner in value.values())
    return unit if simple and list(value) == [f"{unit}{number}" for number in range(1, len(value) + 1)] else ""


def _add_column(stack: list[Block], name: str, values: Iterable[Scalar]) -> None:
    for row, value in enumerate(values):
        if row == len(stack):
            stack.append(Block("", {}))
        stack[row] = Block("", {**stack[row].fields, name: value})


def _block(item: Any, name: str) -> Block:
    if not isinstance(item, Mapping):
        return Block("", {name: item})
    kinds: list[str] = []
    fields: dict[str, Scalar] = {}
    _collect(item, "", kinds, fields)
    return Block(" ".join(kinds), fields)


def _collect(value: Mapping[str, Any], prefix: str, kinds: list[str], fields: dict[str, Scalar]) -> None:
    if len(value) == 1 and isinstance(inner := next(iter(value.values())), Mapping):  # the option of a OneOf
        kinds.append(next(iter(value)))
        _collect(inner, prefix, kinds, fields)
        return
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            _collect(inner, f"{prefix}{name}.", kinds, fields)
        else:
            fields[prefix + name] = inner


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _has_list(value: Any) -> bool:
    return _is_list(value) or (isinstance(value, Mapping) and any(map(_has_list, value.values())))


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_ranges(nets: Iterable[ArchParts]) -> dict[str, tuple[float, float]]:
    """The smallest and the largest value of each numeric field.

    >>> value_ranges([split_arch({"blocks": [{"heads": 3}, {"heads": 4}]}), split_arch({"blocks": [{"heads": 2}]})])
    {'heads': (2, 4)}
    """
    ranges: dict[str, tuple[float, float]] = {}
    for block in (block for parts in nets for block in parts.blocks()):
        for name, value in block.fields.items():
            if is_number(value):
                low, high = ranges.get(name, (value, value))
                ranges[name] = min(low, value), max(high, value)
    return ranges


# Blocks in words

LABELS = {
    "expansion": "×{}",
    "mlp_ratio": "MLP ×{}",
    "num_heads": "heads {}",
    "qkv_dim": "q-k-v {}",
    "query_rate": "q ×{}",
    "value_rate": "v ×{}",
}


def block_label(block: Block) -> list[str]:
    """The operator of a block and each of its fields, in few letters.

    >>> block_label(Block("local", {"expansion": 0.25, "window": 7, "query_rate": 0.5, "num_heads": 8}))
    ['local', '×1/4', 'window 7', 'q ×1/2', 'heads 8']
    >>> block_label(Block("encoder ibn", {"qkv_dim": 64, "ffn.kernel": 5, "ffn.expansion": 4}))
    ['encoder + ibn', 'q-k-v 64', 'kernel 5', '×4']
    """
    last = Counter(path.rpartition(".")[2] for path in block.fields)
    words = [" + ".join(block.kind.split())]
    for path, value in block.fields.items():
        name = path.rpartition(".")[2]
        name = name if last[name] == 1 else path
        words.append(LABELS.get(name, name + " {}").format(short_value(value)))
    return words


def short_value(value: Scalar) -> str:
    """A value in few letters, fractions such as 1/8 as such.

    >>> short_value(0.125), short_value(1.0), short_value(3.5), short_value("gelu")
    ('1/8', '1', '3.5', 'gelu')
    """
    if isinstance(value, float) and 0 < value < 1 and abs(1 / value - round(1 / value)) < 1e-9:
        return f"1/{round(1 / value)}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def stage_title(path: str) -> str:
    """The path of a stack of blocks, as people say it.

    >>> stage_title("stage1.blocks"), stage_title("stages 2.blocks"), stage_title("encoder.blocks")
    ('stage 1', 'stage 2', 'encoder')
    """
    return re.sub(r"^stages? ?(\d+)$", r"stage \1", path.removesuffix(".blocks"))


BLOCKS = "blocks"
THIRDS = ("first third", "middle third", "last third")
"""What stands for stages in a net that has none."""


def stage_of(path: Sequence[Any]) -> str:
    """The stage that a path names; empty where it names none."""
    return next((part for part in path if re.fullmatch(r"stage\d+", str(part))), "")


def stage_number(stage: str) -> int:
    return int(stage.removeprefix("stage"))


def shares(values: Iterable[Scalar]) -> dict[Scalar, float]:
    """How often each value was chosen, in the order of the values.

    >>> shares(["ibn", "convnext", "ibn", "ibn"])
    {'convnext': 0.25, 'ibn': 0.75}
    """
    counts = Counter(values)
    return {
        value: counts[value] / counts.total() for value in sorted(counts, key=lambda value: (str(type(value)), value))
    }


# The drawing of cards; lengths are in inches.
ROW, LINE, GAP, PAD, SPACING = 0.27, 0.24, 0.22, 0.22, 0.08
NUMBER, HEADINGS = 0.3, 0.24  # the column of a layer's number, the line of the fields' names
SHORTEST = 0.3  # of a cell: the bar of the smallest value
BOX_NUMBER, LETTER, BOLD, MARGIN, LEGEND = 0.24, 0.07, 0.08, 0.16, 0.4  # of boxes; MARGIN is the space about a word
LONGEST = 24  # letters of a word in a box
BORDER = "#cfd6de"
SCALE_SAMPLE = 1_000  # candidates that stand for a space that is not known


@dataclass(frozen=True)
class Card:
    """An architecture to draw."""

    title: str
    subtitle: str
    parts: ArchParts


def architectures(run: RunContents) -> Figure | None:
    """The winner between the smallest and the largest architecture of the space."""
    if run.winner is None or not run.winner.arch:
        return None
    extremes = run.extremes()
    cards = [*end_card(run, "smallest", extremes[:1]), card_of(run.winner), *end_card(run, "largest", extremes[-1:])]
    others = extremes or [candidate.arch for candidate in thinned(run.candidates, SCALE_SAMPLE)]
    return Sheet(cards, [split_arch(arch.to_dict()) for arch in others]).figure


def end_card(run: RunContents, name: str, extreme: Sequence[Arch]) -> list[Card]:
    """The smallest or largest arch of the space; of an unknown space, that of the budget among the references."""
    models = run.references(name)[:1]
    if extreme:
        arch = extreme[0].to_dict()
        scores = next((model.scores for model in run.models if model.arch == arch), {})
        models = [ModelResult(f"{name} of the space", arch, scores)]
    return [card_of(model) for model in models]


def card_of(model: ModelResult) -> Card:
    return Card(model.name, describe_costs(model.scores), split_arch(model.arch))


class Sheet:
    """The drawing of cards side by side, in inches from the top left; equal layers stand at equal height.

    Args:
        others: Further archs of the space, so that the range of bars and the colours of operators do not depend on the
            cards.
    """

    def __init__(self, cards: Sequence[Card], others: Sequence[ArchParts] = ()) -> None:
        nets = [card.parts for card in cards]
        self.ranges = value_ranges([*nets, *others])
        self.colours = palette(operators([*others, *nets]))
        self.stacks = list(dict.fromkeys(name for parts in nets for name in parts.stacks))
        scalars = dict.fromkeys(name for parts in nets for name in parts.scalars)
        self.scalars = [name for name in scalars if not any(belongs(name, stack) for stack in self.stacks)]
        self.columns = {name: field_names(nets, name) for name in self.stacks}
        self.box_columns = box_columns([block for parts in nets for block in parts.blocks() if block.kind])
        box = BOX_NUMBER + sum(self.box_columns) if self.box_columns else 0.0
        fields = max(map(len, self.columns.values()), default=1)
        self.width = max(3.3, 2 * PAD + max(NUMBER + 0.85 * fields, box))
        self.tops, bottom = self._plan(nets)
        size = len(cards) * (self.width + GAP) + GAP, bottom + PAD + GAP + (LEGEND if self.colours else 0)
        self.figure = new_figure(*size, layout=None)
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
        self.axes.set_axis_off()
        for index, card in enumerate(cards):
            self._card(card, GAP + index * (self.width + GAP), bottom + PAD)
        self._legend(GAP + PAD, size[1] - 0.42)

    def _plan(self, nets: Sequence[ArchParts]) -> tuple[dict[str, float], float]:
        """The top of each stack, and the bottom of all."""
        top, tops = GAP + PAD + 0.62 + LINE * len(self.scalars), {}
        for name in self.stacks:
            tops[name] = top + 0.12
            headings = HEADINGS if self.columns[name] else 0
            top = tops[name] + 0.48 + headings + ROW * max(len(parts.stacks.get(name, ())) for parts in nets)
        return tops, top

    def _card(self, card: Card, left: float, bottom: float) -> None:
        chosen = card.title in CHOSEN
        edge: dict[str, Any] = {"edgecolor": RED, "linewidth": 2.2} if chosen else {"edgecolor": BORDER, "linewidth": 1}
        style: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.12", "facecolor": "#fbfcfd", **edge}
        self.axes.add_patch(FancyBboxPatch((left, GAP), self.width, bottom - GAP, **style))
        x, y = left + PAD, GAP + PAD
        self._text(x, y + 0.08, card.title, size=13, weight="bold", color=RED if chosen else INK)
        self._text(x, y + 0.34, card.subtitle, size=9, color=GREY)
        for row, name in enumerate(self.scalars):
            if name in card.parts.scalars:
                line, value = y + 0.68 + row * LINE, short_value(card.parts.scalars[name])
                self._text(x, line, name, size=9.5, color=GREY)
                self._text(x + self.width - 2 * PAD, line, value, size=9.5, weight="bold", ha="right")
        for name, stack in card.parts.stacks.items():
            scalars = {path: value for path, value in card.parts.scalars.items() if belongs(path, name)}
            facts = [f"{path.rpartition('.')[2]} {short_value(value)}" for path, value in scalars.items()]
            self._stack(x, self.tops[name], name, stack, facts)

    def _stack(self, x: float, top: float, name: str, stack: Sequence[Block], facts: Sequence[str]) -> None:
        count, width, columns = sum(map(layers, stack)), self.width - 2 * PAD, self.columns[name]
        title = " · ".join([*facts, f"{count} layer{'s' * (count != 1)}"])
        self.axes.plot([x, x + width], [top, top], color=BORDER, lw=0.8)
        self._text(x, top + 0.2, stage_title(name), size=9.5, color=GREY)
        self._text(x + width, top + 0.2, title, size=9.5, weight="bold", ha="right")
        cell = (width - NUMBER + SPACING) / max(1, len(columns))
        for column, name in enumerate(columns):
            self._text(x + NUMBER + column * cell, top + 0.5, short_heading(name, cell), size=8, color=GREY)
        start = top + 0.38 + (HEADINGS if columns else 0)
        for row, block in enumerate(stack):
            self._text(x, start + row * ROW + ROW / 2, str(row + 1), size=8, color=GREY)
            if block.kind:
                self._box(x + BOX_NUMBER, start + row * ROW, width - BOX_NUMBER, block)
            else:
                self._bars(x + NUMBER, start + row * ROW, cell, block, columns)

    def _box(self, x: float, top: float, width: float, block: Block) -> None:
        """A block in the colour of its operator, its fields in the columns that all boxes share."""
        colour = self.colours[block.operator]
        self.axes.add_patch(Rectangle((x, top + 0.02), width, ROW - 0.04, facecolor=colour, alpha=0.6, lw=0))
        for index, (word, column) in enumerate(zip(block_label(block), self.box_columns, strict=False)):
            weight = "normal" if index else "bold"
            self._text(x + MARGIN / 2, top + ROW / 2, word, size=8.5, room=LONGEST, weight=weight)
            x += column

    def _bars(self, x: float, top: float, cell: float, block: Block, columns: Sequence[str]) -> None:
        """The fields of a block in columns; a number has a bar from the smallest to the largest in the space."""
        for column, name in enumerate(columns):
            if name not in block.fields:
                continue
            left, value, width = x + column * cell, block.fields[name], cell - SPACING
            if is_number(value):
                low, high = self.ranges[name]
                share = SHORTEST + (1 - SHORTEST) * (value - low) / (high - low) if high > low else 1.0
                corner, height = (left, top + 0.03), ROW - 0.06
                self.axes.add_patch(Rectangle(corner, width, height, facecolor=FAINT))
                colour = PALETTE[column % len(PALETTE)]
                self.axes.add_patch(Rectangle(corner, width * share, height, facecolor=colour, alpha=0.6))
            self._text(left + 0.06, top + ROW / 2, short_value(value), size=8.5)

    def _legend(self, left: float, top: float) -> None:
        for name, colour in self.colours.items():
            self.axes.add_patch(Rectangle((left, top), 0.2, 0.18, facecolor=colour, alpha=0.6, linewidth=0))
            self._text(left + 0.28, top + 0.09, name, size=9.5, room=LONGEST)
            left += 0.6 + 0.09 * min(LONGEST, len(name))

    def _text(
        self, x: float, y: float, text: str, *, size: float, color: str = INK, room: int = 60, **style: Any
    ) -> None:
        self.axes.text(x, y, plain(text, room), va="center", fontsize=size, color=color, **style)


def field_names(nets: Sequence[ArchParts], stack: str) -> list[str]:
    """The columns of a stack; boxes have none, since their fields differ by operator."""
    blocks = [block for parts in nets for block in parts.stacks.get(stack, ()) if not block.kind]
    return list(dict.fromkeys(name for block in blocks for name in block.fields))


def box_columns(blocks: Sequence[Block]) -> list[float]:
    """The widths of the columns that all boxes share."""
    columns = zip_longest(*map(block_label, blocks), fillvalue="")
    letters = [min(LONGEST, max(map(len, column))) for column in columns]
    return [(LETTER if index else BOLD) * count + MARGIN for index, count in enumerate(letters)]


def layers(block: Block) -> int:
    """How many layers a block stands for: one, or as many as a stage has."""
    depth = block.fields.get("depth", 1)
    return depth if isinstance(depth, int) else 1


def belongs(scalar: str, stack: str) -> bool:
    """Whether a single value belongs to a stack, as stage1.embed_dim does to stage1.blocks."""
    parent = scalar.rpartition(".")[0]
    return parent != "" and parent == stack.rpartition(".")[0]


def short_heading(name: str, cell: float) -> str:
    room = max(4, int(cell * 13))  # letters, at the size of a heading
    return name if len(name) <= room else name[: room - 1] + "…"


# Operators of nets whose blocks choose among several: by stage, their shares among the candidates as the search went
# on, and how each does in the supernet.

FEWEST = 20  # random archs, for shares that mean something
COLUMNS, SAMPLED = 50, 10_000  # more generations are drawn together, more candidates are sampled
BAR, ASIDE = 0.2, 0.26  # the width of the bars on both sides and their distance, as shares of the width of the search
TICKS = 5

OperatorsByStage = dict[str, list[str]]
"""Stage -> the operators of its blocks, in the order of the net."""


def operators(nets: Iterable[ArchParts]) -> list[str]:
    """The operators in the order in which they occur; empty where blocks have no kinds.

    >>> operators([split_arch({"blocks": [{"conv": {"kernel": 3}}, {"encoder": {"ffn": {"conv": {"kernel": 5}}}}]})])
    ['conv', 'encoder']
    """
    blocks = (block for parts in nets for block in parts.blocks())
    return list(dict.fromkeys(block.operator for block in blocks if block.kind))


def operators_by_stage(parts: ArchParts) -> OperatorsByStage:
    """The operators by stage; of a net that is a single stack, by thirds of its depth.

    >>> blocks = [{"conv": {"kernel": 3}}, {"local": {"window": 7}}]
    >>> net = {"stage1": {"dim": 8, "blocks": blocks}, "stage2": {"dim": 16, "blocks": blocks[:1]}}
    >>> operators_by_stage(split_arch(net))
    {'stage 1': ['conv', 'local'], 'stage 2': ['conv']}
    >>> operators_by_stage(split_arch({"dim": 8, "blocks": [*blocks, *blocks]}))
    {'first third': ['conv', 'local'], 'middle third': ['conv'], 'last third': ['local']}
    """
    stacks = {
        stage_title(path): [block.operator for block in stack]
        for path, stack in parts.stacks.items()
        if any(block.kind for block in stack)
    }
    if len(stacks) != 1:
        return stacks
    (blocks,) = stacks.values()
    return merge_stages({THIRDS[3 * index // len(blocks)]: [name]} for index, name in enumerate(blocks))


def merge_stages(nets: Iterable[OperatorsByStage]) -> OperatorsByStage:
    """The operators of several nets, by stage."""
    merged: OperatorsByStage = {}
    for net in nets:
        for stage, names in net.items():
            merged.setdefault(stage, []).extend(names)
    return merged


def operator_shares(run: RunContents) -> Figure | None:
    """A panel for each stage: random archs, the candidates of every generation, and the winner."""
    archs = run.extremes() or [candidate.arch for candidate in thinned(run.candidates, SAMPLED)]
    colours = palette(operators(split_arch(arch.to_dict()) for arch in archs))
    if not run.candidates or len(colours) < 2:
        return None
    columns, unit = operators_by_generation(run)
    random_archs = run.random_members()
    random = count_operators(random_archs) if len(random_archs) >= FEWEST else {}
    winner = operators_by_stage(split_arch(run.winner.arch)) if run.winner else {}
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
    return merge_stages(operators_by_stage(split_arch(arch.to_dict())) for arch in archs)


def share_panel(
    axes: Axes, course: Mapping[int, list[str]], random: list[str], winner: list[str], colours: dict[str, str]
) -> None:
    count, step = len(course), -(-len(course) // TICKS)
    for index, names in enumerate(course.values()):
        share_bar(axes, (index + 0.5) / count, names, colours, 1 / count)
    share_bar(axes, -ASIDE, random, {name: lighten(colour) for name, colour in colours.items()}, BAR, INK)
    share_bar(axes, 1 + ASIDE, winner, colours, BAR, "white")
    ticks = {(index + 0.5) / count: str(number) for index, number in enumerate(course) if index % step == 0}
    ticks |= {-ASIDE: "random"} if random else {}
    ticks |= {1 + ASIDE: "winner"} if winner else {}
    style_axes(axes)
    axes.grid(False)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
    axes.tick_params(colors=GREY, labelsize=8)


def share_bar(axes: Axes, x: float, names: list[str], colours: dict[str, str], width: float, ink: str = "") -> None:
    """A stacked bar of the shares; with `ink`, they stand in it in percent."""
    bottom, share_of = 0.0, shares(names)
    for name in [name for name in colours if name in share_of]:
        share, colour = share_of[name], colours[name]
        axes.bar([x], [share], width, bottom, color=colour, edgecolor="white" if ink else colour, lw=0.3, zorder=3)
        if ink and share >= 0.08:
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "color": ink, "zorder": 5}
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
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, trainings) in zip(row, curves.items(), strict=True):
        curve_panel(axes, trainings, colours)
        style_axes(axes, "epoch", axis_label(f"holdout_{metric}") if axes is row[0] else "")
        axes.set_title(plain(title, 60), color=INK, fontsize=11)
        axes.xaxis.set_major_locator(nice_ticks(8, integer=True))
    for name, colour in colours.items():
        row[0].add_line(Line2D([], [], color=colour, lw=2, label=plain(name, 30)))
    legend_below(figure, row)
    return figure


def read_trainings(logs: Logs) -> dict[str, list[dict[str, Curve]]]:
    paths = {label: [log] if isinstance(log, Path) else log for label, log in logs.items()}
    return {label: [read_curves(path) for path in seeds] for label, seeds in paths.items()}


def read_curves(path: Path) -> dict[str, Curve]:
    """The accuracies of watched nets, by name. Of repeated epochs, the last counts."""
    curves: dict[str, Curve] = {}
    for record in read_snapshots(path):
        line = from_json(WatchLine, record, path)
        for name, accuracy in line.watch.items():
            curves.setdefault(name, {})[line.epoch] = accuracy
    return curves


def curve_panel(axes: Axes, trainings: Mapping[str, list[dict[str, Curve]]], colours: Mapping[str, str]) -> None:
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


def draw_curve(axes: Axes, curve: Curve, **style: Any) -> None:
    points = [(epoch, 100 * value) for epoch, value in sorted(curve.items()) if math.isfinite(value)]
    if points:
        style |= {"marker": "o", "ms": 4} if len(points) == 1 else {}
        axes.plot(*zip(*points, strict=True), **style)
