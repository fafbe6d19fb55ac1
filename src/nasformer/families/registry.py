"""Registry of families and of their search spaces, by name.

The built-in families are imported when a space or a family is first asked for, so this module needs no torch. A plugin
registers its own: spaces, model folders, timm and every command then know them.

    @register_family
    class MyFormer(TokenBackbone):
        family = "myformer"
        ...

    register_space(Space("myformer-tiny", MyFormer, Struct(...)))
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from nasformer.errors import UserError
from nasformer.families.timm_registry import register_with_timm

if TYPE_CHECKING:
    from nasformer.families.base import Backbone
    from nasformer.families.space import Space

    F = TypeVar("F", bound=type[Backbone])

OF_PLUGINS = "one of your own is known with --import MODULE"
BUILTIN_FAMILIES = ("autoformer", "pit", "esformer", "trionet", "s3", "vit")
"""Modules of this package that register a family and its spaces."""

_families: dict[str, type[Backbone]] = {}
_spaces: dict[str, Space] = {}


def register_family(model: F) -> F:
    """Makes a family known by the name in `model.family`; may be used as a decorator."""
    _register(_families, "family", model.family, model)
    register_with_timm(model.family)
    return model


def register_space(space: Space) -> None:
    """Makes a space known by its name, and its family as well."""
    register_family(space.model)
    _register(_spaces, "space", space.name, space)


def _register(registered: dict[str, Any], what: str, name: str, item: Any) -> None:
    if registered.setdefault(name, item) is not item:
        raise UserError(f"there is another {what} named {name!r} already; give yours another name")


def registered_spaces() -> list[Space]:
    """The spaces that were registered so far; the built-in families are not imported for it."""
    return list(_spaces.values())


def list_families() -> dict[str, type[Backbone]]:
    """Every family by name: the built-in ones, then those of plugins."""
    for family in BUILTIN_FAMILIES:
        import_module(f"nasformer.families.{family}")
    plugins = [family for family in _families if family not in BUILTIN_FAMILIES]
    return {family: _families[family] for family in (*BUILTIN_FAMILIES, *plugins)}


def list_spaces() -> dict[str, Space]:
    """Every space by name, in the order of the families."""
    order = list(list_families())
    return dict(sorted(_spaces.items(), key=lambda item: order.index(item[1].model.family)))


def get_family(name: str) -> type[Backbone]:
    """The model class of a family."""
    return _find(list_families(), "family", name)


def get_space(name: str, **options: Any) -> Space:
    """A space by name, with options of its model, such as img_size or num_classes.

    The name may be an expression with other values for some dimensions of the space, and `timm:NAME` is the space of
    what can be cut out of a model of timm.

    >>> get_space("autoformer-tiny").root.cardinality
    1056964608
    >>> get_space("autoformer-tiny[embed_dim=128,160,192;blocks.depth=4,5]").root.cardinality
    3840
    """
    from nasformer.families.space import parse_choices, parse_expression
    from nasformer.space.node import corners

    base, choices = parse_expression(name)
    if base.startswith("timm:"):
        from nasformer.families.timm_models import timm_space

        space = timm_space(base.removeprefix("timm:"))
    else:
        space = _find(list_spaces(), "space", base)
    if not choices:
        return space.with_options(**options)
    try:
        changed = space.with_choices(parse_choices(space.root_with(choices), choices)).with_options(**options)
        for arch in (changed.root.smallest(), *corners(changed.root)):  # better now than in the middle of a training
            changed.plan(arch)
    except UserError as error:
        raise UserError(f"space {name!r}: {error}") from None
    return changed


def _find(registered: dict[str, Any], what: str, name: str) -> Any:
    if name not in registered:
        close = difflib.get_close_matches(name, registered, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(registered)}"
        raise UserError(f"unknown {what} {name!r}; {hint}")
    return registered[name]
