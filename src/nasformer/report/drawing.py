"""Draws architectures of any family side by side: a card each, a row a layer, a bar a field.

Where blocks choose among operators, a row is a box in the colour of the operator, for then fields differ by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    in_short,
    is_number,
    operator,
    operators,
    ranges,
    stage_name,
)
from nasformer.report.contents import Run, members
from nasformer.report.labels import CHOSEN, costs_in_short
from nasformer.space.arch import Arch
from nasformer.utils.figures import FAINT, GREY, INK, PALETTE, RED, new_figure, palette, plain

# ----------------------------------------------------------------------------------------------------------------------
# Blocks that choose among operators, as boxes: the operator's colour, its name, and what was decided in columns.
# ----------------------------------------------------------------------------------------------------------------------

BOX_NUMBER, LETTER, BOLD, MARGIN = 0.24, 0.07, 0.08, 0.16  # inches: the number of a block, letters, space about a word
INNER = 24  # letters of a word at most
LEGEND = 0.4


class Boxes:
    """How boxes are drawn on one sheet: the same colours and columns in all of them.

    Args:
        shown: What is drawn.
        known: What else there is in the space; colours are the same whatever is drawn of it.
    """

    def __init__(self, shown: Iterable[Anatomy], known: Iterable[Anatomy]) -> None:
        shown = list(shown)
        self.colours = palette(operators([*known, *shown]))
        blocks = [block for anatomy in shown for stack in anatomy.stacks.values() for block in stack if block.kind]
        columns = zip_longest(*map(block_label, blocks), fillvalue="")
        letters = [min(INNER, max(map(len, column))) for column in columns]
        self.columns = [(LETTER if place else BOLD) * count + MARGIN for place, count in enumerate(letters)]
        self.width = BOX_NUMBER + sum(self.columns) if blocks else 0.0

    def draw(self, axes: Any, left: float, top: float, width: float, height: float, number: int, block: Block) -> None:
        """One block, `number` in its stack."""
        _text(axes, left, top + height / 2, str(number), 8, GREY)
        colour, x = self.colours[operator(block)], left + BOX_NUMBER
        axes.add_patch(Rectangle((x, top + 0.02), width - BOX_NUMBER, height - 0.04, facecolor=colour, alpha=0.6, lw=0))
        for place, (word, room) in enumerate(zip(block_label(block), self.columns, strict=False)):
            _text(axes, x + MARGIN / 2, top + height / 2, plain(word, INNER), 8.5, INK, "normal" if place else "bold")
            x += room

    def legend(self, axes: Any, left: float, top: float) -> None:
        for name, colour in self.colours.items():
            axes.add_patch(Rectangle((left, top), 0.2, 0.18, facecolor=colour, alpha=0.6, linewidth=0))
            _text(axes, left + 0.28, top + 0.09, plain(name, INNER), 9.5, INK)
            left += 0.6 + 0.09 * min(INNER, len(name))


def _text(axes: Any, x: float, y: float, text: str, size: float, color: str, weight: str = "normal") -> None:
    axes.text(x, y, text, va="center", fontsize=size, color=color, weight=weight)


ROW, LINE, GAP, PAD, SPACING = 0.27, 0.24, 0.22, 0.22, 0.08  # inches
NUMBER, HEADINGS = 0.3, 0.24  # inches: the column of a layer's number, the line of the fields' names
SHORTEST = 0.3  # of a cell: the bar of the smallest value


@dataclass(frozen=True)
class Card:
    """One architecture to draw."""

    title: str
    subtitle: str
    anatomy: Anatomy


def architectures(run: Run) -> Figure | None:
    """The winner between the smallest and the largest architecture of the space."""
    if run.winner is None or not run.winner.arch:
        return None
    winner = Card(run.winner.name, costs_in_short(run.winner.scores), dissect(run.winner.arch))
    space = members(run)
    ends = {name: card for name in ("smallest", "largest") if (card := _end(run, name, space))}
    cards = [card for card in (ends.get("smallest"), winner, ends.get("largest")) if card]
    known = space or [candidate.arch for candidate in run.candidates]
    return draw(cards, [dissect(arch.to_dict()) for arch in known])


def _end(run: Run, name: str, space: Sequence[Arch]) -> Card | None:
    """One end of the space; of an unknown space, the reference of that name, which is an end of the budget."""
    if space:
        arch = space[0 if name == "smallest" else -1].to_dict()
        same = [model.scores for model in run.models if model.arch == arch]
        return Card(f"{name} of the space", costs_in_short(same[0] if same else {}), dissect(arch))
    rivals = [Card(m.name, costs_in_short(m.scores), dissect(m.arch)) for m in run.references(name)]
    return rivals[0] if rivals else None


def draw(cards: Sequence[Card], known: Sequence[Anatomy] = ()) -> Figure:
    """Draws cards side by side, equal layers at equal height; bars are relative to all values in `known`."""
    return _Sheet(cards, known).figure


class _Sheet:
    """The drawing, in inches from the top left. Its plan (which line stands where) is the same for all cards."""

    def __init__(self, cards: Sequence[Card], known: Sequence[Anatomy]) -> None:
        anatomies = [card.anatomy for card in cards]
        self.ranges = ranges([*anatomies, *known])
        self.stacks = list(dict.fromkeys(name for a in anatomies for name in a.stacks))
        self.scalars = [name for a in anatomies for name in a.scalars if not self._is_of_a_stack(name)]
        self.scalars = list(dict.fromkeys(self.scalars))
        self.boxes = Boxes(anatomies, known)
        self.columns = {name: _columns(anatomies, name) for name in self.stacks}
        fields = max(map(len, self.columns.values()), default=1)
        self.width = max(3.3, 2 * PAD + max(NUMBER + 0.85 * fields, self.boxes.width))
        self.plan, bottom = self._plan(anatomies)
        legend = LEGEND if self.boxes.colours else 0
        size = (len(cards) * (self.width + GAP) + GAP, bottom + PAD + GAP + legend)
        self.figure = new_figure(*size, layout=None)
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
        self.axes.set_axis_off()
        for index, card in enumerate(cards):
            self._card(card, GAP + index * (self.width + GAP), bottom + PAD)
        self.boxes.legend(self.axes, GAP + PAD, size[1] - 0.42)

    def _plan(self, anatomies: Sequence[Anatomy]) -> tuple[dict[str, float], float]:
        """The top of each stack, and the bottom of all."""
        top, plan = GAP + PAD + 0.62 + LINE * len(self.scalars), {}
        for name in self.stacks:
            plan[name] = top + 0.12
            headings = HEADINGS if self.columns[name] else 0
            top = plan[name] + 0.48 + headings + ROW * max(len(a.stacks.get(name, ())) for a in anatomies)
        return plan, top

    def _card(self, card: Card, left: float, bottom: float) -> None:
        chosen = card.title in CHOSEN
        self.axes.add_patch(
            FancyBboxPatch(
                (left, GAP),
                self.width,
                bottom - GAP,
                boxstyle="round,pad=0,rounding_size=0.12",
                facecolor="#fbfcfd",
                edgecolor=RED if chosen else "#cfd6de",
                linewidth=2.2 if chosen else 1,
            )
        )
        x, y = left + PAD, GAP + PAD
        self._text(x, y + 0.08, card.title, size=13, weight="bold", color=RED if chosen else INK)
        self._text(x, y + 0.34, card.subtitle, size=9, color=GREY)
        for row, name in enumerate(self.scalars):
            if name in card.anatomy.scalars:
                self._scalar(x, y + 0.68 + row * LINE, name, card.anatomy.scalars[name])
        for name, stack in card.anatomy.stacks.items():
            self._stack(x, self.plan[name], name, stack, self._beside(card.anatomy, name))

    def _scalar(self, x: float, y: float, name: str, value: Any) -> None:
        self._text(x, y, name, size=9.5, color=GREY)
        self._text(x + self.width - 2 * PAD, y, in_short(value), size=9.5, weight="bold", ha="right")

    def _is_of_a_stack(self, name: str) -> bool:
        """Whether a value outside lists stands beside a list, as stage1.embed_dim beside stage1.blocks."""
        return any(_parent(name) and _parent(name) == _parent(stack) for stack in self.stacks)

    def _beside(self, anatomy: Anatomy, stack: str) -> list[str]:
        own = {name: value for name, value in anatomy.scalars.items() if self._is_of_a_stack(name)}
        mine = {name: value for name, value in own.items() if _parent(name) == _parent(stack)}
        return [f"{name.rpartition('.')[2]} {in_short(value)}" for name, value in mine.items()]

    def _stack(self, x: float, top: float, name: str, stack: Sequence[Block], beside: Sequence[str]) -> None:
        count, width = sum(_layers(block) for block in stack), self.width - 2 * PAD
        layers = " · ".join([*beside, f"{count} layer{'s' * (count != 1)}"])
        self.axes.plot([x, x + width], [top, top], color="#cfd6de", lw=0.8)
        self._text(x, top + 0.2, stage_name(name), size=9.5, color=GREY)
        self._text(x + width, top + 0.2, layers, size=9.5, weight="bold", ha="right")
        cell, headings = self._cell(name), HEADINGS if self.columns[name] else 0
        for column, field in enumerate(self.columns[name]):
            self._text(x + NUMBER + column * cell, top + 0.5, _heading(field, cell), size=8, color=GREY)
        for row, block in enumerate(stack):
            place = top + 0.38 + headings + row * ROW
            if block.kind:
                self.boxes.draw(self.axes, x, place, width, ROW, row + 1, block)
            else:
                self._layer(x, place, row + 1, block, name)

    def _cell(self, stack: str) -> float:
        room = self.width - 2 * PAD - NUMBER + SPACING
        return room / max(1, len(self.columns[stack]))

    def _layer(self, x: float, top: float, number: int, block: Block, stack: str) -> None:
        middle, cell = top + ROW / 2, self._cell(stack)
        self._text(x, middle, str(number), size=8, color=GREY)
        for column, field in enumerate(self.columns[stack]):
            left, colour = x + NUMBER + column * cell, PALETTE[column % len(PALETTE)]
            if field in block.fields:
                self._value(left, top, cell - SPACING, field, block.fields[field], colour)

    def _value(self, left: float, top: float, width: float, field: str, value: Any, colour: str) -> None:
        corner, height = (left, top + 0.03), ROW - 0.06
        if is_number(value):
            low, high = self.ranges[field]
            share = SHORTEST + (1 - SHORTEST) * (value - low) / (high - low) if high > low else 1.0
            self.axes.add_patch(Rectangle(corner, width, height, facecolor=FAINT))
            self.axes.add_patch(Rectangle(corner, width * share, height, facecolor=colour, alpha=0.6))
        self._text(left + 0.06, top + ROW / 2, in_short(value), size=8.5)

    def _text(self, x: float, y: float, text: str, *, size: float, color: str = INK, **style: Any) -> None:
        self.axes.text(x, y, plain(text, 60), va="center", fontsize=size, color=color, **style)


def _layers(block: Block) -> int:
    """A block is a layer, unless it is a stage of so many."""
    depth = block.fields.get("depth", 1)
    return depth if isinstance(depth, int) else 1


def _columns(anatomies: Sequence[Anatomy], stack: str) -> list[str]:
    """The fields of a table; boxes have none, for what they hold differs by operator."""
    blocks = [block for a in anatomies for block in a.stacks.get(stack, ()) if not block.kind]
    return list(dict.fromkeys(field for block in blocks for field in block.fields))


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _heading(field: str, cell: float) -> str:
    room = max(4, int(cell * 13))  # letters, at the size of a heading
    return field if len(field) <= room else field[: room - 1] + "…"
