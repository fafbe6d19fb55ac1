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

from nasformer import Arch, Choice, Repeat, Space, Struct, register_space
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


block = EveryChoice(num_heads=Choice(3, 4), mlp_ratio=Choice(3.5, 4.0))
root = EveryChoice(embed_dim=Choice(192, 216, 240), blocks=Repeat(block, depth=Choice(12, 13, 14)))
options = ClassicalAutoFormer.derived_options(root)
about = "AutoFormer's supernet T with weights of its own for every choice of a block"
register_space(Space("autoformer-tiny-classical", ClassicalAutoFormer, root, options, about=about))
