"""Blocks that choose among operators, as boxes: the operator's colour, its name, and what was decided in columns."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from matplotlib.patches import Rectangle

from nasformer.report.anatomy import Anatomy, Block
from nasformer.report.block_label import block_label
from nasformer.report.operators import operator, operators
from nasformer.report.style import GREY, INK, palette, plain

NUMBER, LETTER, BOLD, MARGIN = 0.24, 0.07, 0.08, 0.16  # inches: the number of a block, letters, space about a word
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
        self.width = NUMBER + sum(self.columns) if blocks else 0.0

    def draw(self, axes: Any, left: float, top: float, width: float, height: float, number: int, block: Block) -> None:
        """One block, `number` in its stack."""
        _text(axes, left, top + height / 2, str(number), 8, GREY)
        colour, x = self.colours[operator(block)], left + NUMBER
        axes.add_patch(Rectangle((x, top + 0.02), width - NUMBER, height - 0.04, facecolor=colour, alpha=0.6, lw=0))
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
