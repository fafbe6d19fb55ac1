"""What the run folder of a space's evolution holds, read and checked once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.report.anatomy import BLOCKS, stage_of
from nasformer.report.contents import REPAIR
from nasformer.report.hover import Picture, save_picture
from nasformer.report.labels import in_a_row
from nasformer.report.page import document, figure, folded, note, settings_tables, tiles_of
from nasformer.space.choice import Scalar
from nasformer.space.dimensions import format_value
from nasformer.space_search.evolve import Dimension, Step
from nasformer.space_search.quality import Quality
from nasformer.supernet.carry import Carried
from nasformer.utils.files import read_json, write_text
from nasformer.utils.tables import csv_text, html_row, html_table

FILE = "evolution.json"


@dataclass(frozen=True)
class Evolution:
    """The spaces of an evolution as far as they are judged, the first one first.

    Args:
        carried: For each space, how much of its supernet came from the one before; None where nothing did.
        last: The number of shifts that were asked for; None where that is not known.
        least: Values that fewer archs use have no part in a fitted line.
    """

    folder: Path
    config: Mapping[str, Any]
    budget: str
    steps: list[Step]
    carried: list[Carried | None]
    last: int | None
    least: float

    @property
    def names(self) -> list[str]:
        """The dimensions, in the order of the space."""
        return list(dict.fromkeys(name for step in self.steps for name in step.dimensions))

    @property
    def goes_on(self) -> bool:
        """Whether another space follows, which is not judged yet."""
        moves = any(one.next != one.values for one in self.steps[-1].dimensions.values())
        return moves and not self.is_final(len(self.steps) - 1)

    def is_final(self, number: int) -> bool:
        """Whether nothing was to be decided after that space."""
        return self.last is not None and number >= self.last


def is_evolution(folder: Path) -> bool:
    """Whether it is the run folder of an evolution, and of no search besides."""
    return (folder / FILE).exists() and not (folder / "result.json").exists()


def read_evolution(folder: Path) -> Evolution:
    """Reads config.json and evolution.json; both must be there."""
    config, path = read_json(folder / "config.json"), folder / FILE
    content = read_json(path)
    try:
        options, entries = content.get("options") or {}, content["steps"]
        evolution = Evolution(
            folder=folder,
            config=config,
            budget=str(content.get("budget") or ""),
            steps=[_step(entry) for entry in entries],
            carried=[_carried(entry.get("carried")) for entry in entries],
            last=None if options.get("steps") is None else int(options["steps"]),
            least=float(options.get("min_samples") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); {REPAIR}") from None
    if not evolution.steps:
        raise UserError(f"{path} is damaged (has no steps); {REPAIR}")
    return evolution


def _step(entry: Mapping[str, Any]) -> Step:
    error = entry["error"]
    return Step(
        space=str(entry["space"]),
        cardinality=int(entry["cardinality"]),
        quality=Quality(float(error["expected"]), float(error["top"])),
        errors=tuple(sorted(known for known in map(float, entry["errors"]) if math.isfinite(known))),
        dimensions={str(name): _dimension(one) for name, one in entry["dimensions"].items()},
    )


def _dimension(entry: Mapping[str, Any]) -> Dimension:
    values, counts, et = (tuple(entry[name]) for name in ("values", "counts", "et"))
    if not len(values) == len(counts) == len(et) > 0:
        raise ValueError("a dimension must have as many counts and E-T errors as values")
    return Dimension(
        values=values,
        counts=tuple(map(float, counts)),
        et=tuple(map(_number, et)),
        **{name: _number(entry.get(name)) for name in ("slope", "stderr", "intercept")},
        shift=int(entry.get("shift") or 0),
        step=_number(entry.get("step")),
        next=tuple(entry.get("next") or values),
        notice=str(entry.get("notice") or ""),
    )


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)


def _carried(entry: Mapping[str, Any] | None) -> Carried | None:
    if not entry:
        return None
    counts = {name: int(entry.get(name) or 0) for name in ("whole", "part", "fresh")}
    return Carried(**counts, inexact=tuple(map(str, entry.get("inexact") or ())))


# ----------------------------------------------------------------------------------------------------------------------
# How the spaces of an evolution, their dimensions and what was decided of them are put into words.
# ----------------------------------------------------------------------------------------------------------------------

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letter(number: int) -> str:
    """The name of a space by its place: A, B ... Z, A1, B1 ...

    >>> letter(0), letter(2), letter(27)
    ('A', 'C', 'B1')
    """
    turn, place = divmod(number, len(ALPHABET))
    return f"{ALPHABET[place]}{turn or ''}"


def split_name(name: str) -> tuple[str, str]:
    """The stage of a dimension, if it is of one, and the rest of its name; that it is one of blocks need not be said.

    >>> split_name("stage3.blocks.num_heads"), split_name("depth.stage1"), split_name("blocks.mlp_ratio")
    (('stage3', 'num_heads'), ('stage1', 'depth'), ('', 'mlp_ratio'))
    """
    parts = name.split(".")
    stage = stage_of(tuple(parts))
    return stage, ".".join(part for part in parts if part not in (stage, BLOCKS)) or name


def short_name(name: str) -> str:
    """
    >>> short_name("stage3.blocks.num_heads"), short_name("embed_dim")
    ('stage 3: num_heads', 'embed_dim')
    """
    stage, rest = split_name(name)
    return f"{stage.replace('stage', 'stage ')}: {rest}" if stage else rest


def slope_in_words(one: Dimension) -> str:
    """Slope and standard error; a dash where there is no line.

    >>> slope_in_words(Dimension((1, 2), (5, 5), (30.0, 29.5), slope=-0.5, stderr=0.125))
    '−0.50 ± 0.12'
    """
    if one.slope is None:
        return "–"
    error = "" if one.stderr is None else f" ± {one.stderr:.2f}"
    return signed(one.slope) + error


def signed(number: float) -> str:
    """
    >>> signed(0.1234), signed(-2), signed(-0.001)
    ('+0.12', '−2.00', '0.00')
    """
    shown = f"{number:+.2f}"
    return shown[1:] if float(shown) == 0 else shown.replace("-", "−")


def shift_in_words(one: Dimension, final: bool) -> str:
    """Where the values go; nothing where a notice says why they do not.

    >>> shift_in_words(Dimension((1, 2), (5, 5), (30.0, 29.5), slope=-0.5, stderr=0.1, shift=1), False)
    'up 1 step'
    """
    if one.shift:
        return f"{'up' if one.shift > 0 else 'down'} {abs(one.shift)} step{'s' * (abs(one.shift) > 1)}"
    return "" if final or one.slope is None or one.notice else "stays"


def decided(one: Dimension, final: bool) -> str:
    """All that was found and decided of a dimension, in a line.

    >>> stuck = Dimension((1, 2), (5, 5), (30.0, 31.0), slope=1.0, stderr=0.25, notice="kept at 1 or more")
    >>> decided(stuck, final=False)
    '+1.00 ± 0.25, kept at 1 or more'
    """
    slope = "" if one.slope is None else slope_in_words(one)
    return ", ".join(filter(None, (slope, shift_in_words(one, final), one.notice)))


def notices(step: Step) -> Iterator[str]:
    """What was noticed, each with the dimensions that it was noticed of.

    >>> one = Dimension((7,), (9,), (30.0,), notice="left alone: a single value")
    >>> list(notices(Step("s3", 2, None, (), {"stage3.window": one, "stage4.window": one})))
    ['stage3.window and stage4.window: left alone: a single value']
    """
    found: dict[str, list[str]] = {}
    for name, one in step.dimensions.items():
        if one.notice:
            found.setdefault(one.notice, []).append(name)
    yield from (f"{in_a_row(names)}: {notice}" for notice, names in found.items())


def moved(step: Step) -> list[str]:
    return [name for name, one in step.dimensions.items() if one.next != one.values]


def state(evolution: Evolution) -> str:
    """What a reader must know of an evolution that did not take all of its steps."""
    number = len(evolution.steps) - 1
    if evolution.goes_on:
        return f"Not finished: space {letter(number + 1)} follows, but is not judged yet. The same command goes on."
    if evolution.last is not None and number < evolution.last:
        return f"Nothing shifted after space {letter(number)}, so the evolution ended {evolution.last - number} short."
    return ""


# ----------------------------------------------------------------------------------------------------------------------
# The spaces and their dimensions as tables for spreadsheets and data frames.
# ----------------------------------------------------------------------------------------------------------------------

SPACES = ("name", "space", "cardinality", "samples", "expected", "top", "et", "whole", "part", "fresh", "notices")
DIMENSIONS = ("name", "dimension", "values", "counts", "et", "slope", "stderr", "intercept", "step", "shift", "next")


def spaces_csv(evolution: Evolution) -> str:
    """A line for each space: errors in %, and how many tensors came whole, in part or not at all."""
    rows = []
    for number, (step, carried) in enumerate(zip(evolution.steps, evolution.carried, strict=True)):
        came = (carried.whole, carried.part, carried.fresh) if carried else (None,) * 3
        judged = step.quality.expected, step.quality.top, round(step.quality.et, 6)
        told = "; ".join(notices(step))
        rows.append((letter(number), step.space, step.cardinality, len(step.errors), *judged, *came, told))
    return csv_text(SPACES, rows)


def dimensions_csv(evolution: Evolution) -> str:
    """A line for each dimension of each space; where a cell has several numbers, they go with the values."""
    rows = []
    for number, step in enumerate(evolution.steps):
        for name, one in step.dimensions.items():
            lists = (_several(each) for each in (one.values, one.counts, one.et))
            line = (one.slope, one.stderr, one.intercept, one.step)
            rows.append((letter(number), name, *lists, *line, one.shift, _several(one.next), one.notice))
    return csv_text((*DIMENSIONS, "notice"), rows)


def _several(values: Sequence[Any]) -> str:
    return " ".join(
        "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value) for value in values
    )


# ----------------------------------------------------------------------------------------------------------------------
# The page of an evolution: how good its spaces are, how their choices moved, and why.
# ----------------------------------------------------------------------------------------------------------------------

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
    return ", ".join(map(format_value, values))


# ----------------------------------------------------------------------------------------------------------------------
# The report of a space's evolution: the page, its pictures, and its tables.
# ----------------------------------------------------------------------------------------------------------------------


def write_evolution_report(folder: Path) -> Path:
    """Writes `report.html`, `plots/*.png` and `.svg`, `spaces.csv` and `dimensions.csv`; gives the HTML's path."""
    evolution = read_evolution(folder)
    pictures = write_pictures(evolution)
    write_text(folder / "spaces.csv", spaces_csv(evolution))
    write_text(folder / "dimensions.csv", dimensions_csv(evolution))
    target = folder / "report.html"
    write_text(target, page(evolution, pictures))
    return target


def write_pictures(evolution: Evolution) -> dict[str, Picture]:
    """The figures by name; on the page, the points of one can be pointed at."""
    from nasformer.report.evolution_plots import choices, dots, error_distribution, space_errors, tendencies

    plots = evolution.folder / "plots"
    found = {
        "space_errors": save_picture(space_errors(evolution), plots / "space_errors"),
        "error_distribution": save_picture(error_distribution(evolution), plots / "error_distribution"),
        "choices": save_picture(choices(evolution), plots / "choices"),
        "tendencies": save_picture(tendencies(evolution), plots / "tendencies", dots(evolution)),
    }
    return {name: picture for name, picture in found.items() if picture}
