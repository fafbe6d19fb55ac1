"""Architectures drawn side by side: a card for each, a row for each layer, a bar for each field.

Where blocks choose among operators, a row is a box in the colour of the operator, since fields then differ by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from nasformer.report.anatomy import (
    Anatomy,
    Block,
    block_label,
    dissect,
    is_number,
    operators,
    short_value,
    stage_title,
    value_ranges,
)
from nasformer.report.labels import CHOSEN, describe_costs
from nasformer.results.contents import RunContents, thinned
from nasformer.search.problem import ModelResult
from nasformer.space.arch import Arch
from nasformer.utils.figures import FAINT, GREY, INK, PALETTE, RED, new_figure, palette, plain

# Lengths are in inches.
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
    anatomy: Anatomy


def architectures(run: RunContents) -> Figure | None:
    """The winner between the smallest and the largest architecture of the space."""
    if run.winner is None or not run.winner.arch:
        return None
    extremes = run.extremes()
    cards = [*end_card(run, "smallest", extremes[:1]), card_of(run.winner), *end_card(run, "largest", extremes[-1:])]
    known = extremes or [candidate.arch for candidate in thinned(run.candidates, SCALE_SAMPLE)]
    return Sheet(cards, [dissect(arch.to_dict()) for arch in known]).figure


def end_card(run: RunContents, name: str, extreme: Sequence[Arch]) -> list[Card]:
    """An end of the space; of a space that is not known, the reference of that name, which is an end of the budget."""
    models = run.references(name)[:1]
    if extreme:
        arch = extreme[0].to_dict()
        scores = next((model.scores for model in run.models if model.arch == arch), {})
        models = [ModelResult(f"{name} of the space", arch, scores)]
    return [card_of(model) for model in models]


def card_of(model: ModelResult) -> Card:
    return Card(model.name, describe_costs(model.scores), dissect(model.arch))


class Sheet:
    """The drawing of cards side by side, in inches from the top left; equal layers stand at equal height.

    Args:
        known: What else there is in the space: bars are relative to its values, operators have the same colours
            whatever is drawn.
    """

    def __init__(self, cards: Sequence[Card], known: Sequence[Anatomy] = ()) -> None:
        anatomies = [card.anatomy for card in cards]
        self.ranges = value_ranges([*anatomies, *known])
        self.colours = palette(operators([*known, *anatomies]))
        self.stacks = list(dict.fromkeys(name for anatomy in anatomies for name in anatomy.stacks))
        scalars = dict.fromkeys(name for anatomy in anatomies for name in anatomy.scalars)
        self.scalars = [name for name in scalars if not any(belongs(name, stack) for stack in self.stacks)]
        self.columns = {name: field_names(anatomies, name) for name in self.stacks}
        self.box_columns = box_columns([block for anatomy in anatomies for block in anatomy.blocks() if block.kind])
        box = BOX_NUMBER + sum(self.box_columns) if self.box_columns else 0.0
        fields = max(map(len, self.columns.values()), default=1)
        self.width = max(3.3, 2 * PAD + max(NUMBER + 0.85 * fields, box))
        self.tops, bottom = self._plan(anatomies)
        size = len(cards) * (self.width + GAP) + GAP, bottom + PAD + GAP + (LEGEND if self.colours else 0)
        self.figure = new_figure(*size, layout=None)
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
        self.axes.set_axis_off()
        for index, card in enumerate(cards):
            self._card(card, GAP + index * (self.width + GAP), bottom + PAD)
        self._legend(GAP + PAD, size[1] - 0.42)

    def _plan(self, anatomies: Sequence[Anatomy]) -> tuple[dict[str, float], float]:
        """The top of each stack, and the bottom of all."""
        top, tops = GAP + PAD + 0.62 + LINE * len(self.scalars), {}
        for name in self.stacks:
            tops[name] = top + 0.12
            headings = HEADINGS if self.columns[name] else 0
            top = tops[name] + 0.48 + headings + ROW * max(len(anatomy.stacks.get(name, ())) for anatomy in anatomies)
        return tops, top

    def _card(self, card: Card, left: float, bottom: float) -> None:
        chosen = card.title in CHOSEN
        edge: dict[str, Any] = {"edgecolor": RED, "linewidth": 2.2} if chosen else {"edgecolor": BORDER, "linewidth": 1}
        style = {"boxstyle": "round,pad=0,rounding_size=0.12", "facecolor": "#fbfcfd", **edge}
        self.axes.add_patch(FancyBboxPatch((left, GAP), self.width, bottom - GAP, **style))
        x, y = left + PAD, GAP + PAD
        self._text(x, y + 0.08, card.title, size=13, weight="bold", color=RED if chosen else INK)
        self._text(x, y + 0.34, card.subtitle, size=9, color=GREY)
        for row, name in enumerate(self.scalars):
            if name in card.anatomy.scalars:
                line, value = y + 0.68 + row * LINE, short_value(card.anatomy.scalars[name])
                self._text(x, line, name, size=9.5, color=GREY)
                self._text(x + self.width - 2 * PAD, line, value, size=9.5, weight="bold", ha="right")
        for name, stack in card.anatomy.stacks.items():
            scalars = {path: value for path, value in card.anatomy.scalars.items() if belongs(path, name)}
            facts = [f"{path.rpartition('.')[2]} {short_value(value)}" for path, value in scalars.items()]
            self._stack(x, self.tops[name], name, stack, facts)

    def _stack(self, x: float, top: float, name: str, stack: Sequence[Block], facts: Sequence[str]) -> None:
        count, width, columns = sum(map(layers, stack)), self.width - 2 * PAD, self.columns[name]
        title = " · ".join([*facts, f"{count} layer{'s' * (count != 1)}"])
        self.axes.plot([x, x + width], [top, top], color=BORDER, lw=0.8)
        self._text(x, top + 0.2, stage_title(name), size=9.5, color=GREY)
        self._text(x + width, top + 0.2, title, size=9.5, weight="bold", ha="right")
        cell = (width - NUMBER + SPACING) / max(1, len(columns))
        for column, field in enumerate(columns):
            self._text(x + NUMBER + column * cell, top + 0.5, short_heading(field, cell), size=8, color=GREY)
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
        for place, (word, column) in enumerate(zip(block_label(block), self.box_columns, strict=False)):
            weight = "normal" if place else "bold"
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


def field_names(anatomies: Sequence[Anatomy], stack: str) -> list[str]:
    """The columns of a stack; boxes have none, since their fields differ by operator."""
    blocks = [block for anatomy in anatomies for block in anatomy.stacks.get(stack, ()) if not block.kind]
    return list(dict.fromkeys(field for block in blocks for field in block.fields))


def box_columns(blocks: Sequence[Block]) -> list[float]:
    """The widths of the columns that all boxes share."""
    columns = zip_longest(*map(block_label, blocks), fillvalue="")
    letters = [min(LONGEST, max(map(len, column))) for column in columns]
    return [(LETTER if place else BOLD) * count + MARGIN for place, count in enumerate(letters)]


def layers(block: Block) -> int:
    """A block is a layer, unless it is a stage of so many."""
    depth = block.fields.get("depth", 1)
    return depth if isinstance(depth, int) else 1


def belongs(scalar: str, stack: str) -> bool:
    """Whether a single value belongs to a stack, as stage1.embed_dim does to stage1.blocks."""
    parent = scalar.rpartition(".")[0]
    return parent != "" and parent == stack.rpartition(".")[0]


def short_heading(name: str, cell: float) -> str:
    room = max(4, int(cell * 13))  # letters, at the size of a heading
    return name if len(name) <= room else name[: room - 1] + "…"
