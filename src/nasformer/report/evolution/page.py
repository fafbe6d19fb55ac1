"""The page of an evolution: how good its spaces are, how their choices moved, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from nasformer.evolving.steps import Step
from nasformer.report.evolution.contents import Evolution
from nasformer.report.evolution.words import (
    letter,
    moved,
    notices,
    shift_in_words,
    signed,
    slope_in_words,
    state,
)
from nasformer.report.html import document, figure, folded, note, settings_tables, tiles_of
from nasformer.report.labels import in_a_row
from nasformer.report.picture import Picture
from nasformer.report.tables import html_row, html_table
from nasformer.space.choice import Scalar
from nasformer.space.dimensions import written

TRAINED_ON = (
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
        "Subnets of the spaces over each other",
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
        "line in error-% a step of the dimension, its standard error by resampling (as pale wedges), and what was "
        "decided. Values shift against the slope. Point at a dot for its numbers; dimensions.csv has all of them.",
    ),
}


def page(evolution: Evolution, pictures: Mapping[str, Picture]) -> str:
    config = evolution.config
    title = " on ".join(str(config[name]) for name in ("space", "data") if config.get(name))
    title = f"nasformer: evolution of {title}" if title else "nasformer: evolution of a space"
    parts = [_heading(evolution, title), tiles_of(list(_tiles(evolution))), note(state(evolution)), spaces(evolution)]
    for name, (words, caption) in CAPTIONS.items():
        if name in pictures:
            more = TRAINED_ON if name == "space_errors" and any(evolution.carried) else ""
            parts.append(figure(words, caption + more, pictures[name]))
    parts += [_decisions(evolution, number) for number in range(len(evolution.steps))]
    return document(title, [*parts, *settings_tables(config)])


def _heading(evolution: Evolution, title: str) -> str:
    known = {
        "budget": evolution.budget,
        "seed": evolution.config.get("seed"),
        "folder": evolution.folder.resolve().name,
    }
    words = " · ".join(f"{name}: {value}" for name, value in known.items() if value not in (None, ""))
    return f"<h1>{escape(title)}</h1>\n<p>{escape(words)}</p>"


def _tiles(evolution: Evolution) -> Iterator[tuple[str, str]]:
    judged = [step.quality.et for step in evolution.steps]
    yield f"{judged[0]:.2f} %", "E-T error of space A"
    if len(judged) > 1:
        name = letter(len(judged) - 1)
        yield f"{judged[-1]:.2f} %", f"E-T error of space {name}"
        yield signed(judged[-1] - judged[0]), f"points from A to {name}; less is better"
    yield f"{sum(len(step.errors) for step in evolution.steps):,}", "subnets judged"
    shifted = {name for step in evolution.steps for name in moved(step)}
    yield f"{len(shifted)} of {len(evolution.names)}", "dimensions shifted"


def spaces(evolution: Evolution) -> str:
    """The spaces with their numbers; below each what it is, whence its weights came and what was noticed."""
    head = ("space", "architectures", "samples", "expected error", "top error", "E-T error")
    rows = []
    for number, step in enumerate(evolution.steps):
        judged = (step.quality.expected, step.quality.top, step.quality.et)
        errors = [f"{error:.2f} %" for error in judged]
        rows.append(html_row([letter(number), f"{step.cardinality:.3g}", f"{len(step.errors):,}", *errors]))
        expression = escape(step.space).replace(";", ";<wbr>")  # a line may end between dimensions
        told = "".join(f"<p>{escape(line)}</p>" for line in _told(evolution, number))
        rows.append(f'<tr><td class="words" colspan="{len(head)}"><p>{expression}</p>{told}</td></tr>')
    return f"<h2>Spaces</h2>\n{html_table(head, rows)}"


def _told(evolution: Evolution, number: int) -> Iterator[str]:
    step, carried = evolution.steps[number], evolution.carried[number]
    if carried:
        yield f"weights of {letter(number - 1)}: {carried}" if number else f"weights: {carried}"
    if names := moved(step):
        yield f"shifts: {in_a_row(names)}"
    yield from notices(step)


def _decisions(evolution: Evolution, number: int) -> str:
    """All dimensions of a space, folded."""
    step, final = evolution.steps[number], evolution.is_final(number)
    if not step.dimensions:
        return ""
    head = ("dimension", "values", "E-T errors", "slope", "decision", "next", "notice")
    title = f"Space {letter(number)}: {len(step.dimensions)} dimensions, {len(moved(step))} of them shift"
    return folded(title, html_table(head, list(_lines(step, final))))


def _lines(step: Step, final: bool) -> Iterator[str]:
    for name, one in step.dimensions.items():
        errors = ", ".join("–" if et is None else f"{et:.2f}" for et in one.et)
        following = _listed(one.next) if one.next != one.values else ""
        said = shift_in_words(one, final), following, one.notice
        yield html_row([name, _listed(one.values), errors, slope_in_words(one), *said])


def _listed(values: Sequence[Scalar]) -> str:
    return ", ".join(map(written, values))
