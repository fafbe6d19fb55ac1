"""The report of the search of a search space: how good its spaces are, how their choices moved, and why.

Spaces are called A, B, C ... in the order of the evolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nasformer.report.evolution_plots import FIGURES, format_shift, format_slope, letter, signed, tendency_tooltips
from nasformer.report.html import (
    Picture,
    document,
    figures,
    folded,
    heading,
    note,
    page_title,
    save_pictures,
    settings_tables,
    tiles,
)
from nasformer.report.labels import join_words
from nasformer.results.contents import Evolution, read_evolution
from nasformer.results.folder import RunFolder
from nasformer.space.dimensions import format_value
from nasformer.space.nodes import Scalar
from nasformer.space_search.evolve import Dimension, Step
from nasformer.utils.files import read_json, write_text
from nasformer.utils.tables import html_row, html_table, write_csv

SPACES = ("name", "space", "cardinality", "samples", "expected", "top", "et", "whole", "part", "fresh", "notices")
DIMENSIONS = ("name", "dimension", "values", "counts", "et", "slope", "stderr", "intercept", "step", "shift", "next")
CARRIED = (
    " Supernets after the first start with the weights of the one before, so a later space has been trained for "
    "longer: what it gains is not due to its choices alone."
)
CAPTIONS = {
    "space_errors": (
        "Errors of the spaces",
        "Errors of random subnets within the budget, with the weights of their supernet: of all of them (expected), of "
        "the best of them (top), and the mean of both, the E-T error by which a space is judged.",
    ),
    "error_distribution": (
        "Distribution of the errors",
        "The share of a space's sampled subnets that have at most this error: a curve further to the upper left is a "
        "better space.",
    ),
    "choices": (
        "The choices of each dimension",
        "The values among which each space may choose, from space to space. A band that slopes has shifted; diamonds "
        "are values that a space has first, hollow marks those that the next one drops.",
    ),
    "tendencies": (
        "What the samples say of each dimension",
        "E-T error of the subnets that use a value, less that of their whole space; larger points stand for more "
        "subnets, hollow ones for too few to count (they may lie beyond the edge). Above each panel: the slope of the "
        "line in error-% a step of the dimension, its standard error by resampling (as pale wedges), and the decision. "
        "Values shift against the slope. Point at a dot for its numbers; dimensions.csv has all of them.",
    ),
}


def write_evolution_report(folder: RunFolder) -> Path:
    """Writes `report.html`, `plots/*.png` and `.svg`, `spaces.csv` and `dimensions.csv`; gives the path of the HTML."""
    config, evolution = read_json(folder.config), read_evolution(folder.evolution)
    pictures = save_pictures(evolution, FIGURES, folder.plots, {"tendencies": tendency_tooltips(evolution)})
    write_csv(folder.path / "spaces.csv", SPACES, space_rows(evolution))
    write_csv(folder.path / "dimensions.csv", (*DIMENSIONS, "notice"), dimension_rows(evolution))
    write_text(folder.report, page(evolution, config, folder.path.resolve().name, pictures))
    return folder.report


# Tables for spreadsheets and data frames


def space_rows(evolution: Evolution) -> Iterator[Sequence[Any]]:
    """A row for each space: errors in %, and how many tensors came whole, in part or not at all."""
    for number, step in enumerate(evolution.steps):
        space = letter(number), step.space, step.cardinality, len(step.errors)
        errors = step.error.expected, step.error.top, round(step.error.et, 6)
        carried = (step.carried.whole, step.carried.part, step.carried.fresh) if step.carried else (None,) * 3
        yield *space, *errors, *carried, "; ".join(notices(step))


def dimension_rows(evolution: Evolution) -> Iterator[Sequence[Any]]:
    """A row for each dimension of each space; a cell with several numbers has one for each value."""
    for number, step in enumerate(evolution.steps):
        for name, one in step.dimensions.items():
            lists = map(spaced, (one.values, one.counts, one.et))
            line = one.slope, one.stderr, one.intercept, one.step
            yield letter(number), name, *lists, *line, one.shift, spaced(one.next), one.notice


def spaced(values: Sequence[Any]) -> str:
    return " ".join(
        "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value) for value in values
    )


def notices(step: Step) -> Iterator[str]:
    """Every notice, with the dimensions that have it.

    >>> one = Dimension((7,), (9,), (30.0,), notice="left alone: a single value")
    >>> list(notices(Step("s3", 2, None, (), {"stage3.window": one, "stage4.window": one})))
    ['stage3.window and stage4.window: left alone: a single value']
    """
    names: dict[str, list[str]] = {}
    for name, dimension in step.dimensions.items():
        if dimension.notice:
            names.setdefault(dimension.notice, []).append(name)
    yield from (f"{join_words(having)}: {notice}" for notice, having in names.items())


# The page


def page(evolution: Evolution, config: Mapping[str, Any], folder: str, pictures: Mapping[str, Picture]) -> str:
    title = page_title(config, "evolution of ") or "nasformer: evolution of a space"
    top = heading(title, budget=evolution.budget, seed=config.get("seed"), folder=folder)
    parts = [top, tiles(list(evolution_tiles(evolution))), note(state(evolution)), spaces_table(evolution)]
    parts += figures(captions(evolution), pictures)
    parts += [dimensions_table(evolution, number) for number in range(len(evolution.steps))]
    return document(title, [*parts, settings_tables(config)])


def captions(evolution: Evolution) -> dict[str, tuple[str, str]]:
    """Title and caption of every figure by its name, in the order of the page."""
    title, caption = CAPTIONS["space_errors"]
    return {**CAPTIONS, "space_errors": (title, caption + CARRIED * any(step.carried for step in evolution.steps))}


def evolution_tiles(evolution: Evolution) -> Iterator[tuple[str, str]]:
    errors = [step.error.et for step in evolution.steps]
    yield f"{errors[0]:.2f} %", "E-T error of space A"
    if len(errors) > 1:
        name = letter(len(errors) - 1)
        yield f"{errors[-1]:.2f} %", f"E-T error of space {name}"
        yield signed(errors[-1] - errors[0]), f"points from A to {name}; less is better"
    yield f"{sum(len(step.errors) for step in evolution.steps):,}", "subnets judged"
    shifted = {name for step in evolution.steps for name in moving(step)}
    yield f"{len(shifted)} of {len(evolution.dimensions)}", "dimensions shifted"


def moving(step: Step) -> list[str]:
    return [name for name, dimension in step.dimensions.items() if dimension.moves]


def state(evolution: Evolution) -> str:
    """What a reader must know of an evolution that did not make all of its shifts."""
    number = len(evolution.steps) - 1
    if evolution.unfinished:
        return f"Not finished: space {letter(number + 1)} follows, but is not judged yet. The same command goes on."
    if missing := evolution.missing_steps:
        return f"Nothing shifted after space {letter(number)}, so the evolution ended {missing} short."
    return ""


def spaces_table(evolution: Evolution) -> str:
    """The spaces with their numbers; below each its expression, where its weights came from, shifts and notices."""
    head = ("space", "E-T error", "expected error", "top error", "samples", "architectures")
    rows = []
    for number, step in enumerate(evolution.steps):
        errors = [f"{error:.2f} %" for error in (step.error.et, step.error.expected, step.error.top)]
        cells = [letter(number), *errors, f"{len(step.errors):,}", f"{step.cardinality:.3g}"]
        rows.append(html_row(cells, head=("", *head[1:])))
        expression = escape(step.space).replace(";", ";<wbr>")  # a line may end between dimensions
        facts = []
        if step.carried:
            facts.append(f"weights of {letter(number - 1)}: {step.carried}" if number else f"weights: {step.carried}")
        if names := moving(step):
            facts.append(f"shifts: {join_words(names)}")
        words = "".join(f"<p>{escape(line)}</p>" for line in [*facts, *notices(step)])
        rows.append(f'<tr><td class="words" colspan="{len(head)}"><p>{expression}</p>{words}</td></tr>')
    return f"<h2>Spaces</h2>\n{html_table(head, rows)}"


def dimensions_table(evolution: Evolution, number: int) -> str:
    """All dimensions of a space, folded."""
    step, last = evolution.steps[number], evolution.is_last(number)
    if not step.dimensions:
        return ""
    head = ("dimension", "values", "E-T errors", "slope", "decision", "next", "notice")
    title = f"Space {letter(number)}: {len(step.dimensions)} dimensions, {len(moving(step))} of them shift"
    rows = [
        html_row([name, *dimension_cells(dimension, last)], head=("", *head[1:]))
        for name, dimension in step.dimensions.items()
    ]
    return folded(title, html_table(head, rows, kind="text"))


def dimension_cells(dimension: Dimension, last: bool) -> list[str]:
    errors = ", ".join("–" if et is None else f"{et:.2f}" for et in dimension.et)
    following = listed(dimension.next) if dimension.moves else ""
    slope, shift = format_slope(dimension) or "–", format_shift(dimension, last)
    return [listed(dimension.values), errors, slope, shift, following, dimension.notice]


def listed(values: Sequence[Scalar]) -> str:
    return ", ".join(map(format_value, values))
