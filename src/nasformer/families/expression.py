"""Space expressions: a space with choices of your own is named by what differs from a registered one.

`s3-micro[stage1.embed_dim=24,32,40;stage3.blocks.depth=2,3,4]` is s3-micro with other values for two of its dimensions.
Whatever stores the name of a space can store an expression. Expressions that we write are canonical: dimensions in the
order of the declaration, and only those that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nasformer.errors import UserError
from nasformer.space import Choice, Scalar, Struct, dimensions
from nasformer.space.dimensions import check_known, listed

FORM = "expected a form such as autoformer-tiny[embed_dim=128,160,192;blocks.depth=4,5]"
RESERVED = "[ ] ; = ,"


def parse(text: str) -> tuple[str, dict[str, list[str]]]:
    """The name of the registered space, and the values of each dimension as they are written.

    >>> parse("s3-micro[stage1.embed_dim=24,32; stage3.blocks.depth=2,3]")
    ('s3-micro', {'stage1.embed_dim': ['24', '32'], 'stage3.blocks.depth': ['2', '3']})
    >>> parse("s3-micro")
    ('s3-micro', {})
    """
    base, bracket, rest = text.strip().partition("[")
    inside = rest.removesuffix("]")
    if not bracket and "]" not in base:
        return base, {}
    if not bracket or inside == rest or "[" in inside or "]" in inside:
        raise UserError(f"space {text!r} does not have one [ and one ] at its end; {FORM}")
    if not inside.strip():
        raise UserError(f"space {text!r} has empty brackets; leave them out, or name a dimension in them: {FORM}")
    choices: dict[str, list[str]] = {}
    for part in inside.split(";"):
        name, values = parse_dimension(part, text)
        if name in choices:
            raise UserError(f"space {text!r} names {name} twice; put all its values into one list")
        choices[name] = values
    return base.strip(), choices


def parse_dimension(part: str, text: str) -> tuple[str, list[str]]:
    name, equals, values = (piece.strip() for piece in part.partition("="))
    if not name or not equals or "=" in values:
        raise UserError(f"space {text!r} has {part.strip()!r} in its brackets, expected dimension=value,value; {FORM}")
    each = [value.strip() for value in values.split(",")]
    if not all(each):
        raise UserError(f"space {text!r} has an empty value for {name}, expected a list such as {name}=24,32")
    return name, each


def read_choices(root: Struct, texts: Mapping[str, Sequence[str]]) -> dict[str, list[Scalar]]:
    """The values that texts stand for, given the space that has these dimensions."""
    known = dimensions(root)
    for name in texts:
        check_known(name, known)
    return {name: [read(known[name], text) for text in each] for name, each in texts.items()}


def read(base: Choice, text: str) -> Scalar:
    """A number or a truth where the base has one; the text itself where it has texts, or where it is no other thing."""
    if any(isinstance(value, str) for value in base.values):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def changes(base: Struct, root: Struct) -> dict[str, tuple[Scalar, ...]]:
    """The dimensions of `root` whose values are not those of `base`, in the order of the declaration."""
    ours, theirs = dimensions(root), dimensions(base)
    return {name: choice.values for name, choice in ours.items() if choice.values != theirs[name].values}


def expression(base: str, choices: Mapping[str, Sequence[Scalar]]) -> str:
    """
    >>> expression("s3-micro", {"stage1.embed_dim": (24, 32), "stage1.blocks.mlp_ratio": (2.0, 2.5)})
    's3-micro[stage1.embed_dim=24,32;stage1.blocks.mlp_ratio=2,2.5]'
    """
    for name, values in choices.items():
        for value in values:
            if isinstance(value, str) and set(value) & set(RESERVED):
                raise UserError(f"{name} has the value {value!r}; names of spaces can have no values with {RESERVED}")
    return f"{base}[{';'.join(f'{name}={listed(values)}' for name, values in choices.items())}]"
