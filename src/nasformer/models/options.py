"""Options of a space: which one, and for which images. No torch here, so that help comes at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from nasformer.errors import UserError
from nasformer.utils.units import OptionGroup, check_range

if TYPE_CHECKING:
    from nasformer.models.space import Space

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
    """Whether the command starts from fresh weights, so that it has no use for those of a net."""

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
        super().__post_init__()

    def model_options(self) -> dict[str, Any]:
        """The options of the model that were set."""
        named = {name: getattr(self, name) for name in ("img_size", "patch_size", "num_classes", "in_chans")}
        return {name: value for name, value in named.items() if value is not None} | self.model

    def chosen_space(self) -> Space:
        """The space that was named, with the options of the model."""
        from nasformer.models.registry import get_space, list_spaces

        if self.from_:
            return self.source_space()
        if not self.space:
            raise UserError(f"name a space with --space; there are: {', '.join(list_spaces())}")
        return get_space(self.space, **self.model_options())

    def source_space(self) -> Space:
        """The space of what can be cut out of the net that was named."""
        from nasformer.models.pretrained import source_space

        if self.space:
            raise UserError(f"--from {self.from_} has a space of its own; leave --space {self.space} out")
        return source_space(self.from_ or "").with_options(**self.model_options())

    def source_costs(self) -> dict[str, float]:
        """The costs of the net behind --from, for limits that are shares of them; empty without --from."""
        from nasformer.models.pretrained import source_arch

        return self.chosen_space().costs(source_arch(self.from_)) if self.from_ else {}
