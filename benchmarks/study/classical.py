"""AutoFormer with classical weight sharing, to compare weight entanglement with: every choice of a block has weights of
its own in every layer. A plugin: `nasformer run --import classical --space autoformer-tiny-classical ...`.

Only blocks are kept apart; the patch embedding, the last norm and the classifier, which have one choice (the width),
share their first channels as ever.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from itertools import product
from typing import Any

from nasformer import Arch, Choice, Repeat, Space, Struct, get_space, register_space
from nasformer.families.autoformer import AutoFormer
from nasformer.models.base import Segment


class ClassicalAutoFormer(AutoFormer):
    """AutoFormer whose blocks are named by their choices, so that a supernet has each of them apart."""

    family = "autoformer-classical"

    @classmethod
    @wraps(AutoFormer.plan.__func__)  # type: ignore[attr-defined]
    def plan(cls, arch: Arch, **options: Any) -> list[Segment]:
        return [apart(segment) for segment in super().plan(arch, **options)]


def apart(segment: Segment) -> Segment:
    """The segment with its width, heads and neurons in its name, if it is a block."""
    if not segment.name.startswith("blocks."):
        return segment
    sizes = [str(dict(segment.options)[name]) for name in ("embed_dim", "num_heads", "hidden_dim")]
    return replace(segment, name=f"{segment.name}.of_{'_'.join(sizes)}")


class EveryChoice(Struct):
    """A struct of which every combination of choices brings weights of its own."""

    def _corners(self) -> list[Arch]:
        nodes = self.fields.values()
        values = [node.values if isinstance(node, Choice) else node._corners() for node in nodes]
        return [self.validate(dict(zip(self.fields, chosen, strict=True))) for chosen in product(*values)]


def register(name: str, of: str, struct: EveryChoice, **options: Any) -> None:
    about = f"{of} with weights of its own for every choice of a block"
    options = {**ClassicalAutoFormer.derived_options(struct), **options}
    register_space(Space(name, ClassicalAutoFormer, struct, options, about=about))


def declare(widths: Choice, heads: Choice, ratios: Choice, depths: Choice) -> EveryChoice:
    block = EveryChoice(num_heads=heads, mlp_ratio=ratios)
    return EveryChoice(embed_dim=widths, blocks=Repeat(block, depth=depths))


register(
    "autoformer-tiny-classical",
    "AutoFormer's supernet T",
    declare(Choice(192, 216, 240), Choice(3, 4), Choice(3.5, 4.0), Choice(12, 13, 14)),
)
register(
    "autoformer-digits-classical",
    "the space of the recipe digits",
    declare(Choice(16, 24, 32, 48, 64), Choice(1, 2, 3, 4), Choice(0.5, 1.0, 2.0, 4.0), Choice(1, 2, 3, 4, 5, 6, 8)),
    **get_space("autoformer-micro").options,
)
