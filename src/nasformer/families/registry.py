"""The spaces by name."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from nasformer.errors import UserError
from nasformer.families.names import FAMILIES
from nasformer.families.space import Space, parse, read_choices
from nasformer.families.timm_registry import offer
from nasformer.space.node import corners

_SPACES: dict[str, Space] = {}


def register(space: Space) -> None:
    if space.name in _SPACES:
        raise ValueError(f"a space named {space.name!r} exists already")
    _SPACES[space.name] = space
    offer(space.model.family)


def list_spaces() -> dict[str, Space]:
    """Every space there is, by name; in the order of the families, whichever was imported first."""
    for family in FAMILIES:
        import_module(f"nasformer.families.{family}")
    place = {family: number for number, family in enumerate(FAMILIES)}
    return dict(sorted(_SPACES.items(), key=lambda item: place.get(item[1].model.family, len(place))))


def get_space(name: str, **options: Any) -> Space:
    """A space by name, with options of its model, such as img_size or num_classes.

    The name may be an expression with other values for some dimensions of the space.

    >>> get_space("autoformer-tiny").root.cardinality
    1056964608
    >>> get_space("autoformer-tiny[embed_dim=128,160,192;blocks.depth=4,5]").root.cardinality
    3840
    """
    base, texts = parse(name)
    known = list_spaces()
    if base not in known:
        close = difflib.get_close_matches(base, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
        raise UserError(f"unknown space {base!r}; {hint}")
    space = known[base]
    if not texts:
        return space.with_options(**options)
    try:
        chosen = space.with_choices(read_choices(space.root, texts)).with_options(**options)
        for arch in (chosen.root.smallest(), *corners(chosen.root)):  # better now than in the middle of a training
            chosen.plan(arch)
    except UserError as error:
        raise UserError(f"space {name!r}: {error}") from None
    return chosen
