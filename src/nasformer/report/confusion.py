"""The confusion matrix as a picture, and an evaluation as files."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from nasformer.train.evaluate import ClassScore, Confusion
from nasformer.utils.figures import BLUES, GREY, INK, dress, new_figure, plain, png, svg
from nasformer.utils.files import write_bytes, write_text
from nasformer.utils.tables import csv_text

NAMED = 30
"""Classes up to which each gets its name at the axes."""
NUMBERED = 20
"""Classes up to which the counts stand in the cells."""


def write_confusion(found: Confusion, folder: Path, **about: Any) -> None:
    """Writes evaluation.json, per_class.csv, confusion.png and confusion.svg."""
    content = {**about, **found.scores, "classes": list(found.classes)}
    content |= {"per_class": [asdict(one) for one in found.by_class], "confusion": found.counts.tolist()}
    write_text(folder / "evaluation.json", json.dumps(content) + "\n")
    write_text(folder / "per_class.csv", per_class_table(found))
    figure = confusion_figure(found)
    write_bytes(folder / "confusion.png", png(figure))
    write_bytes(folder / "confusion.svg", svg(figure))


def per_class_table(found: Confusion) -> str:
    return csv_text([field.name for field in fields(ClassScore)], map(astuple, found.by_class))


def confusion_figure(found: Confusion) -> Figure:
    """True classes down, guesses across; shades by the logarithm of the count, so that rare mistakes show as well."""
    counts, size = found.counts.numpy(), len(found.classes)
    side = min(3.4 + 0.32 * size, 9.0)
    figure = new_figure(side + 0.9, side)
    axes = figure.subplots()
    shown = np.ma.masked_equal(counts, 0)
    norm = LogNorm(0.9, max(counts.max(), 2))
    picture = axes.imshow(shown, cmap=BLUES, norm=norm, interpolation="nearest")
    dress(axes, "taken for", "true class")
    axes.grid(False)
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    name_classes(axes, found.classes)
    if size <= NUMBERED:
        number_cells(axes, counts, norm)
    scores = found.scores
    top5 = f", top-5 {scores['top5']:.1%}" if size > 5 else ""
    text = f"{scores['images']:,} images, {size} classes, top-1 {scores['accuracy']:.1%}{top5}"
    figure.supxlabel(text, fontsize=10, color=INK)
    add_scale(figure, axes, picture)
    return figure


def name_classes(axes: Any, classes: Any) -> None:
    if len(classes) > NAMED:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    names = [plain(str(name), 18) for name in classes]
    upright = max(map(len, names)) <= 2
    axes.set_xticks(range(len(names)), names, rotation=0 if upright else 90)
    axes.set_yticks(range(len(names)), names)


def number_cells(axes: Any, counts: np.ndarray, norm: LogNorm) -> None:
    for row, column in zip(*np.nonzero(counts), strict=True):
        count = int(counts[row, column])
        colour = "white" if norm(count) > 0.4 else INK
        axes.text(column, row, str(count), ha="center", va="center", fontsize=8 if count < 1000 else 6, color=colour)


def add_scale(figure: Figure, axes: Any, picture: Any) -> None:
    scale = figure.colorbar(picture, ax=axes, shrink=0.7, aspect=30, pad=0.02)
    scale.outline.set_visible(False)  # type: ignore[operator]
    scale.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    scale.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    scale.ax.yaxis.set_minor_locator(LogLocator(subs=()))
    scale.ax.tick_params(colors=GREY, labelsize=9, length=0)
    scale.set_label("images", color=INK, fontsize=10)
