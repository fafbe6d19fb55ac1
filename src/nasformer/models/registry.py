"""Registry of families and of their search spaces, by name: in Python, on the command line and in timm.

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
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from nasformer.errors import UserError, suggest
from nasformer.utils.files import read_json, write_json
from nasformer.utils.units import OptionGroup, check_range

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
    """The spaces registered so far, without importing the built-in families."""
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


# Options of the commands that take a space: which one, and for which images.

OPTION_RANGES = {
    "img_size": (1, 2**14),
    "patch_size": (1, 2**14),
    "stride": (1, 2**14),
    "stem_stride": (1, 2**14),
    "in_chans": (1, 2**12),
    "num_classes": (0, 2**24),
    "stem_dim": (1, 2**20),
    "head_dim": (1, 2**20),
    "super_depth": (1, 2**20),
    "max_relative_position": (0, 2**14),
}
"""Least and largest value of options by name; those that end in _rate are probabilities, others just finite."""


@dataclass
class SpaceOptions(OptionGroup):
    """Which space, and for which images."""

    fresh_weights: ClassVar = False
    """Whether the command starts from fresh weights, and so refuses `from_`."""

    space: str | None = None
    """name of the space, see `nasformer spaces`; with choices of your own: 'NAME[dimension=value,value;...]'"""
    from_: str | None = None
    """in place of a space, a pretrained net to cut: timm:NAME, timm:NAME:WEIGHTS, or the folder of a run or a model"""
    img_size: int | None = None
    """side of the images in pixels; None: as the data has it, or the space's default"""
    patch_size: int | None = None
    """side of a patch in pixels"""
    num_classes: int | None = None
    """number of classes; None: as the data has it"""
    in_chans: int | None = None
    """channels of the images; None: as the data has it"""
    model: dict[str, Any] = field(default_factory=dict)
    """further options of the model, such as {"drop_path_rate": 0.1}"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("img_size", "patch_size", "num_classes", "in_chans"):
            check_range(self, name, *OPTION_RANGES[name], optional=True)
        if self.from_ and self.fresh_weights:
            raise UserError(
                f"this command starts from fresh weights, not from a net's; to cut the net: nasformer run --from "
                f"{self.from_}; to train its space from scratch: --space timm:NAME"
            )

    def model_options(self) -> dict[str, Any]:
        """The options of the model that were set."""
        named = {name: getattr(self, name) for name in ("img_size", "patch_size", "num_classes", "in_chans")}
        return {name: value for name, value in named.items() if value is not None} | self.model

    def chosen_space(self) -> Space:
        """The space that the options name, with the options of the model."""
        if self.from_:
            return self.source_space()
        if not self.space:
            raise UserError(f"name a space with --space; there are: {', '.join(list_spaces())}")
        return get_space(self.space, **self.model_options())

    def source_space(self) -> Space:
        """The space of what can be cut out of the net behind `from_`."""
        from nasformer.models.pretrained import source_space

        if self.space:
            raise UserError(f"--from {self.from_} has a space of its own; leave --space {self.space} out")
        return source_space(self.from_ or "").with_options(**self.model_options())

    def source_costs(self, space: Space) -> dict[str, float]:
        """What the net behind --from costs in its space, for limits that are shares of it; empty without --from."""
        from nasformer.models.pretrained import source_arch

        return space.costs(source_arch(self.from_)) if self.from_ else {}


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
        from nasformer.models.storage import create_model

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
