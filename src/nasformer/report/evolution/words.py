"""How the spaces of an evolution, their dimensions and what was decided of them are put into words."""

from __future__ import annotations

from collections.abc import Iterator

from nasformer.evolving.steps import Dimension, Step
from nasformer.report.evolution.contents import Evolution
from nasformer.report.labels import in_a_row
from nasformer.report.stages import BLOCKS, stage_of

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
