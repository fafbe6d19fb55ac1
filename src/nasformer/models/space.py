"""A search space: which archs there are, which network each one is, and what it costs.

At the end: archs read from text, and space expressions. An expression such as
`s3-micro[stage1.embed_dim=24,32,40;stage3.blocks.depth=2,3,4]` names a registered space with other values for some of
its dimensions, wherever the name of a space is taken or stored. Expressions that we write are canonical: dimensions in
the order of the declaration, and only those that differ.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from html import escape
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.layers.basic import Cost, total_cost
from nasformer.layers.stem import to_2tuple
from nasformer.models.base import Backbone, Segment
from nasformer.space.arch import Arch
from nasformer.space.dimensions import check_dimension, dimensions, format_values, with_choices
from nasformer.space.nodes import Choice, Scalar, Struct
from nasformer.utils.tables import html_row, html_table


@dataclass(frozen=True, repr=False)
class Space:
    """One declaration, from which sampling, model, supernet and cost all follow.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-tiny", img_size=32, patch_size=4, num_classes=10)
    >>> space
    Space('autoformer-tiny', 1.06e+9 archs, 5.01 to 10.1 M parameters)
    >>> arch = space.sample(seed=0)
    >>> model = space.build(arch)
    >>> space.cost(arch).params == sum(p.numel() for p in model.parameters())
    True

    Args:
        name: What users type.
        model: The family's static model; `options` are keyword arguments of its `plan`.
        root: The declaration of the archs.
        presets: Published archs by name. They need not be members of this space.
        predicted: Adds costs that have no closed form, such as the latency that a profile predicts.
        base: The space whose choices were replaced, if any were.
    """

    name: str
    model: type[Backbone]
    root: Struct
    options: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Arch] = field(default_factory=dict)
    about: str = ""
    predicted: Callable[[Sequence[Segment]], Mapping[str, float]] | None = None
    base: Space | None = None

    def with_options(self, **options: Any) -> Space:
        """The same archs on another image size, patch size, number of classes ..."""
        return replace(self, options={**self.options, **self.model.check_options(options)})

    def with_choices(self, choices: Mapping[str, Sequence[Scalar]]) -> Space:
        """The same space with other values for some of its dimensions; its name is the expression for it.

        >>> import nasformer
        >>> space = nasformer.get_space("autoformer-micro").with_choices({"embed_dim": [32, 40]})
        >>> space.name, nasformer.get_space(space.name).root.fields["embed_dim"]
        ('autoformer-micro[embed_dim=32,40]', Choice(32, 40))
        >>> space.with_choices({"embed_dim": [32, 48, 64]}).name
        'autoformer-micro'
        """
        base, root = self.base or self, with_choices(self.root_with(choices), choices)
        options = {**self.options, **self.model.derived_options(root)}
        changed = changed_choices(base.root, root)
        if not changed:
            return replace(self, name=base.name, root=base.root, options=options, about=base.about, base=None)
        about = f"{base.about}; with other choices of {', '.join(changed)}"
        return replace(self, name=expression(base.name, changed), root=root, options=options, about=about, base=base)

    def root_with(self, names: Iterable[str]) -> Struct:
        """The declaration, with the optional dimensions of the model that are named."""
        optional = self.model.optional_dimensions(**self.options)
        added = {name: choice for name, choice in optional.items() if name in names and name not in self.root.fields}
        return Struct(*self.root.rules, **added, **self.root.fields) if added else self.root

    def limits(self) -> Mapping[str, tuple[float | None, float | None]]:
        """The sensible least and largest values of dimensions with these options; see `Backbone.limits`."""
        return self.model.limits(**self.options)

    @property
    def full_options(self) -> dict[str, Any]:
        """Every option of the model, with its default where none was given."""
        return self.model.default_options() | dict(self.options)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the images."""
        options = self.full_options
        return (options["in_chans"], *to_2tuple(options["img_size"]))

    def plan(self, arch: Arch) -> list[Segment]:
        """The network of an arch, layer by layer, described but not built."""
        return self.model.plan(arch, **self.options)

    def build(self, arch: Arch) -> Backbone:
        """The static model of an arch, freshly initialised."""
        return self.model(arch, **self.options)

    def cost(self, arch: Arch) -> Cost:
        """Parameters and MACs in closed form; no model is built."""
        return total_cost([segment.cost() for segment in self.plan(arch)])

    def costs(self, arch: Arch) -> dict[str, float]:
        """The costs by name, as in budgets and journals: those of `cost`, and predicted ones."""
        plan = self.plan(arch)
        counted = vars(total_cost([segment.cost() for segment in plan]))
        return counted | dict(self.predicted(plan) if self.predicted else {})

    def sample(self, seed: int | random.Random = 0) -> Arch:
        """A random arch."""
        rng = seed if isinstance(seed, random.Random) else random.Random(seed)
        return self.root.sample(rng)

    def arch(self, source: Arch | Mapping[str, Any] | str | Path) -> Arch:
        """An arch from its name, a JSON file, inline JSON or a dict; members only, but for presets.

        >>> import nasformer
        >>> len(nasformer.get_space("autoformer-tiny").arch("largest").blocks)
        14
        """
        named = self.named_arch(source) if isinstance(source, str) else None
        if named is not None:
            return named
        values = read_arch(source, self) if isinstance(source, str | Path) else source
        return self.root.validate(self.model.from_columns(values))  # type: ignore[return-value]

    def named_arch(self, name: str) -> Arch | None:
        """The preset of this name, or the "smallest" or "largest" member; None for other names."""
        if name in self.presets:
            return self.presets[name]
        return getattr(self.root, name)() if name in ("smallest", "largest") else None

    def __repr__(self) -> str:
        return f"Space({self.name!r}, {self._size()})"

    def _repr_html_(self) -> str:
        """Name, size and dimensions, for notebooks."""
        rows = [html_row([name, format_values(choice.values)]) for name, choice in dimensions(self.root).items()]
        title = f"<b>{escape(self.name)}</b>: {escape(self.about)}<br>{escape(self._size())}"
        return f"<div>{title}{html_table(['dimension', 'values'], rows)}</div>"

    def _size(self) -> str:
        """The number of archs and the range of their sizes, in words."""
        count = self.root.cardinality
        archs = f"{count:,} archs" if count < 1_000_000 else f"{Decimal(count):.2e} archs"
        try:
            ends = [self.cost(arch).params / 1e6 for arch in (self.root.smallest(), self.root.largest())]
        except UserError:  # options that do not go together
            return archs
        return f"{archs}, {ends[0]:.3g} to {ends[1]:.3g} M parameters"


# Archs from text.


def read_arch(source: str | Path, space: Space) -> Any:
    """The fields of an arch from a JSON file or inline JSON."""
    text = str(source)
    if not text.lstrip().startswith("{"):
        path = Path(source)
        if len(text) > 4096 or not path.is_file():  # a longer text is no path, and asking about it an error
            names = ", ".join({**space.presets, "smallest": None, "largest": None})
            raise UserError(
                f"arch {text[:80]!r} is neither a JSON file nor inline JSON nor a preset of {space.name} ({names})"
            )
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"the arch is not valid JSON ({error}); give an object such as the ones `nasformer sample` prints"
        ) from None
    if not isinstance(values, dict):
        raise UserError(f"the arch must be a JSON object, got {type(values).__name__}")
    return values


# Space expressions.

FORM = "expected a form such as autoformer-tiny[embed_dim=128,160,192;blocks.depth=4,5]"
RESERVED = "[ ] ; = ,"


def parse_expression(text: str) -> tuple[str, dict[str, list[str]]]:
    """The name of the registered space, and the values of each dimension as they are written.

    >>> parse_expression("s3-micro[stage1.embed_dim=24,32; stage3.blocks.depth=2,3]")
    ('s3-micro', {'stage1.embed_dim': ['24', '32'], 'stage3.blocks.depth': ['2', '3']})
    >>> parse_expression("s3-micro")
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
    """Name and values of one part of an expression, such as `embed_dim=24,32`."""
    name, equals, values = (piece.strip() for piece in part.partition("="))
    if not name or not equals or "=" in values:
        raise UserError(f"space {text!r} has {part.strip()!r} in its brackets, expected dimension=value,value; {FORM}")
    written = [value.strip() for value in values.split(",")]
    if not all(written):
        raise UserError(f"space {text!r} has an empty value for {name}, expected a list such as {name}=24,32")
    return name, written


def parse_choices(root: Struct, texts: Mapping[str, Sequence[str]]) -> dict[str, list[Scalar]]:
    """The values of an expression, of the types that the space has in these dimensions."""
    declared = dimensions(root)
    for name in texts:
        check_dimension(name, declared)
    return {name: [parse_value(declared[name], text) for text in written] for name, written in texts.items()}


def parse_value(base: Choice, text: str) -> Scalar:
    """The text itself where the base has texts; else a number or a boolean, if it is one."""
    if any(isinstance(value, str) for value in base.values):
        return text
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def changed_choices(base: Struct, root: Struct) -> dict[str, tuple[Scalar, ...]]:
    """The dimensions of `root` whose values differ from those of `base`, in the order of the declaration."""
    ours, theirs = dimensions(root), dimensions(base)
    return {n: choice.values for n, choice in ours.items() if n not in theirs or choice.values != theirs[n].values}


def expression(base: str, choices: Mapping[str, Sequence[Scalar]]) -> str:
    """The name of a space with other choices.

    >>> expression("s3-micro", {"stage1.embed_dim": (24, 32), "stage1.blocks.mlp_ratio": (2.0, 2.5)})
    's3-micro[stage1.embed_dim=24,32;stage1.blocks.mlp_ratio=2,2.5]'
    """
    for name, values in choices.items():
        for value in values:
            if isinstance(value, str) and set(value) & set(RESERVED):
                raise UserError(f"{name} has the value {value!r}; names of spaces can have no values with {RESERVED}")
    return f"{base}[{';'.join(f'{name}={format_values(values)}' for name, values in choices.items())}]"
