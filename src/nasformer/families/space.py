"""A search space: which archs there are, which model each one is, and what it costs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.families.backbone import Backbone, model_options
from nasformer.families.expression import changes, expression
from nasformer.families.segment import Segment
from nasformer.layers.cost import Cost
from nasformer.layers.grid import both_sides
from nasformer.space import Arch, Scalar, Struct, with_choices


@dataclass(frozen=True)
class Space:
    """One declaration, from which sampling, model, supernet and cost all follow.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-tiny", img_size=32, patch_size=4, num_classes=10)
    >>> arch = space.sample(seed=0)
    >>> model = space.build(arch)
    >>> space.cost(arch).params == sum(p.numel() for p in model.parameters())
    True

    Args:
        name: What users type.
        model: The family's static model; `options` are keyword arguments of its `plan`.
        root: The declaration of the archs.
        presets: Published archs by name. They need not be members of this space (see their comments).
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
    base: Space | None = field(default=None, repr=False)

    def with_options(self, **options: Any) -> Space:
        """The same archs on another image size, patch size, number of classes ..."""
        known = model_options(self.model)
        for name in options:
            if name not in known:
                raise UserError(f"{self.name} has no model option {name!r}; it has: {', '.join(known)}")
        return replace(self, options={**self.options, **options})

    def with_choices(self, choices: Mapping[str, Sequence[Scalar]]) -> Space:
        """The same space with other values for some of its dimensions; its name then says which.

        >>> import nasformer
        >>> space = nasformer.get_space("autoformer-micro").with_choices({"embed_dim": [32, 40]})
        >>> space.name, nasformer.get_space(space.name).root.fields["embed_dim"]
        ('autoformer-micro[embed_dim=32,40]', Choice(32, 40))
        >>> space.with_choices({"embed_dim": [32, 48, 64]}).name
        'autoformer-micro'
        """
        base, root = self.base or self, with_choices(self.root, choices)
        options = {**self.options, **self.model.options_of(root)}
        changed = changes(base.root, root)
        if not changed:
            return replace(self, name=base.name, root=base.root, options=options, about=base.about, base=None)
        about = f"{base.about}; with other choices of {', '.join(changed)}"
        return replace(self, name=expression(base.name, changed), root=root, options=options, about=about, base=base)

    def limits(self) -> Mapping[str, tuple[float | None, float | None]]:
        """The ends that the family sets to dimensions at these options, both inclusive; see `Backbone.limits`."""
        return self.model.limits(**self.options)

    @property
    def full_options(self) -> dict[str, Any]:
        """Every option of the model, with its default where none was given."""
        return model_options(self.model) | dict(self.options)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the images."""
        options = self.full_options
        return (options["in_chans"], *both_sides(options["img_size"]))

    def plan(self, arch: Arch) -> list[Segment]:
        return self.model.plan(arch, **self.options)

    def build(self, arch: Arch) -> Backbone:
        """The static model of an arch, freshly initialised."""
        return self.model(arch, **self.options)

    def cost(self, arch: Arch) -> Cost:
        """Parameters and MACs in closed form; no model is built."""
        return sum((segment.cost() for segment in self.plan(arch)), Cost())

    def costs(self, arch: Arch) -> dict[str, float]:
        """The costs as plain numbers by name: what budgets and journals speak of."""
        plan = self.plan(arch)
        counted = asdict(sum((segment.cost() for segment in plan), Cost()))
        return counted | dict(self.predicted(plan)) if self.predicted else counted

    def sample(self, seed: int | random.Random = 0) -> Arch:
        rng = seed if isinstance(seed, random.Random) else random.Random(seed)
        return self.root.sample(rng)

    def arch(self, source: Arch | Mapping[str, Any] | str | Path) -> Arch:
        """An arch from a preset's name, a JSON file, inline JSON or a dict; members only, but for presets."""
        if isinstance(source, str) and source in self.presets:
            return self.presets[source]
        values = read_arch(source, self) if isinstance(source, str | Path) else source
        return self.root.validate(self.model.columns(values))  # type: ignore[return-value]


def read_arch(source: str | Path, space: Space) -> Any:
    text = str(source)
    if not text.lstrip().startswith("{"):
        path = Path(source)
        if len(text) > 4096 or not path.is_file():  # a longer text is no path, and asking about it an error
            known = ", ".join(space.presets) or "none"
            raise UserError(
                f"arch {text[:80]!r} is neither a JSON file nor inline JSON nor a preset of {space.name} ({known})"
            )
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"the arch is not valid JSON ({error}); give an object such as the ones `nasformer sample` prints"
        ) from None
    if not isinstance(values, dict):
        raise UserError(f"the arch must be a JSON object, got {type(values).__name__}")
    return values
