"""Registry of families and of their search spaces, by name: for ourselves, as a catalogue, and for timm.

The built-in families are imported when a space or a family is first asked for, so this module needs no torch. A plugin
registers its own: spaces, model folders, timm and every command then know them.

    @register_family
    class MyFormer(TokenBackbone):
        family = "myformer"
        ...

    register_space(Space("myformer-tiny", MyFormer, Struct(...)))
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from nasformer.errors import UserError, suggest
from nasformer.utils.files import read_json, write_json

if TYPE_CHECKING:
    from nasformer.models.base import Backbone
    from nasformer.models.space import Space

    F = TypeVar("F", bound=type[Backbone])

OF_PLUGINS = "one of your own is known with --import MODULE"
BUILTIN_FAMILIES = ("autoformer", "pit", "esformer", "trionet", "s3", "vit")
"""Modules of this package that register a family and its spaces."""

_families: dict[str, type[Backbone]] = {}
_spaces: dict[str, Space] = {}


def register_family(model: F) -> F:
    """Registers a family under the name in `model.family`; may be used as a decorator."""
    _register(_families, "family", model.family, model)
    register_with_timm(model.family)
    return model


def register_space(space: Space) -> None:
    """Registers a space under its name, and its family as well."""
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
    from nasformer.models.space import parse_choices, parse_expression
    from nasformer.space.nodes import corners

    base, choices = parse_expression(name)
    if base.startswith("timm:"):
        from nasformer.models.pretrained import timm_space

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
        raise UserError(f"unknown {what} {name!r}; {suggest(name, registered)}")
    return registered[name]


# The catalogue: a JSON file of the built-in spaces, readable without importing torch. `make catalogue` writes it.

CATALOGUE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True)
class SpaceEntry:
    """An entry of the list of spaces; `cardinality` is the number of archs."""

    name: str
    family: str
    about: str
    cardinality: int

    @classmethod
    def of(cls, space: Space) -> SpaceEntry:
        return cls(space.name, space.model.family, space.about, space.root.cardinality)


def catalogue() -> list[SpaceEntry]:
    """An entry for each built-in space, then for each space that a plugin has registered so far."""
    builtin = [
        SpaceEntry(name, row["family"], row["about"], int(row["cardinality"]))
        for name, row in read_json(CATALOGUE).items()
    ]
    names = {entry.name for entry in builtin}
    return builtin + [SpaceEntry.of(space) for space in registered_spaces() if space.name not in names]


def write_catalogue() -> None:
    """Writes the built-in spaces into the catalogue; cardinalities as text, since many JSON readers round them."""
    entries = map(SpaceEntry.of, list_spaces().values())
    write_json(
        CATALOGUE, {e.name: {"family": e.family, "about": e.about, "cardinality": str(e.cardinality)} for e in entries}
    )


# The families in timm, `timm.create_model("nasformer_autoformer", arch=...)`, whichever is imported first. timm takes
# seconds to import, so `import nasformer` does not import it: families are registered once timm is imported.

TIMM_REGISTRY = "timm.models._registry"
_entry_points: dict[str, Callable[..., Any]] = {}


def timm_name(family: str) -> str:
    """The name of a family in timm."""
    return f"nasformer_{family}"


def register_with_timm(*families: str) -> None:
    """Registers families with timm, now or as soon as timm is imported."""
    for family in families:
        if family not in _entry_points:
            _entry_points[family] = make_entry_point(family)
            registry = sys.modules.get(TIMM_REGISTRY)
            if hasattr(registry, "register_model"):
                registry.register_model(_entry_points[family])  # type: ignore[union-attr]
            elif not any(isinstance(finder, TimmImportHook) for finder in sys.meta_path):
                sys.meta_path.insert(0, TimmImportHook())


def make_entry_point(family: str) -> Callable[..., Any]:
    """The function that timm calls to make a model of the family."""

    def create(pretrained: bool = False, **options: Any) -> Any:
        from nasformer.models.timm_models import create_model

        return create_model(family, pretrained, **options)

    create.__name__ = create.__qualname__ = timm_name(family)
    return create


class TimmImportHook:
    """Import hook that registers all families as soon as timm's registry has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TIMM_REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                for create in _entry_points.values():
                    module.register_model(create)

            loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
