"""An evaluation as files: scores and confusion matrix as JSON, accuracy by class as CSV, the matrix as a figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from nasformer.report.html import save_picture
from nasformer.train.evaluate import ClassScore, Confusion
from nasformer.utils.figures import BLUES, GREY, INK, dress, new_figure, plain
from nasformer.utils.files import write_text
from nasformer.utils.tables import write_csv

NAMED, NUMBERED = 30, 20  # classes up to which each has its name at the axes, its counts in the cells


def write_confusion(confusion: Confusion, folder: Path, **about: Any) -> None:
    """Writes evaluation.json, per_class.csv, confusion.png and confusion.svg."""
    content = {**about, **confusion.scores, "classes": list(confusion.classes)}
    content |= {"per_class": [asdict(score) for score in confusion.by_class], "confusion": confusion.counts.tolist()}
    write_text(folder / "evaluation.json", json.dumps(content) + "\n")
    write_csv(folder / "per_class.csv", [field.name for field in fields(ClassScore)], map(astuple, confusion.by_class))
    save_picture(confusion_figure(confusion), folder / "confusion")


def confusion_figure(confusion: Confusion) -> Figure:
    """True classes down, guesses across; shades by the logarithm of the count, so that rare mistakes show as well."""
    counts, size = confusion.counts.numpy(), len(confusion.classes)
    side = min(3.4 + 0.32 * size, 9.0)
    figure = new_figure(side + 0.9, side)
    axes = figure.subplots()
    norm = LogNorm(0.9, max(counts.max(), 2))
    image = axes.imshow(np.ma.masked_equal(counts, 0), cmap=BLUES, norm=norm, interpolation="nearest")
    dress(axes, "taken for", "true class")
    axes.grid(False)
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    name_classes(axes, confusion.classes)
    if size <= NUMBERED:
        number_cells(axes, counts, norm)
    scores = confusion.scores
    top5 = f", top-5 {scores['top5']:.1%}" if size > 5 else ""
    text = f"{scores['images']:,} images, {size} classes, top-1 {scores['accuracy']:.1%}{top5}"
    figure.supxlabel(text, fontsize=10, color=INK)
    add_scale(figure, axes, image)
    return figure


def name_classes(axes: Any, classes: Sequence[str]) -> None:
    if len(classes) > NAMED:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    names = [plain(str(name), 18) for name in classes]
    axes.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) <= 2 else 90)
    axes.set_yticks(range(len(names)), names)


def number_cells(axes: Any, counts: np.ndarray, norm: LogNorm) -> None:
    for row, column in zip(*np.nonzero(counts), strict=True):
        count = int(counts[row, column])
        colour = "white" if norm(count) > 0.4 else INK
        axes.text(column, row, str(count), ha="center", va="center", fontsize=8 if count < 1000 else 6, color=colour)


def add_scale(figure: Figure, axes: Any, image: Any) -> None:
    scale = figure.colorbar(image, ax=axes, shrink=0.7, aspect=30, pad=0.02)
    scale.outline.set_visible(False)  # type: ignore[operator]
    scale.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    scale.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    scale.ax.yaxis.set_minor_locator(LogLocator(subs=()))
    scale.ax.tick_params(colors=GREY, labelsize=9, length=0)
    scale.set_label("images", color=INK, fontsize=10)
