"""One tiny space of every family, and pairs of archs that differ in one size gene."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nasformer.families import autoformer, esformer, pit, s3, trionet
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Struct, corners


def tiny(name: str, root: Struct, vary: str = "", **options: Any) -> Space:
    """A space for tiny images, of which only dimensions whose names begin with `vary` have a choice."""
    fixed = {
        name: Choice(choice.values[0], role=choice.role)
        for name, choice in root.dimensions()
        if not name.startswith(vary)
    }
    return replace(get_space(name, num_classes=4, **options), root=root.replace_choices(fixed))


# One stage varies, all others are alike. It has two blocks or more: some scores compare a block with the one before.
SPACES = {
    "autoformer": tiny(
        "autoformer-micro", autoformer.declare((8, 16), (1, 2), (1, 2), (2, 3)), img_size=8, patch_size=4, head_dim=4
    ),
    "pit": tiny(
        "pit-tiny", pit.declare((4, 8), (1, 2), ((1,), (1,), (2, 3)), (1, 2)), img_size=9, patch_size=3, stride=2
    ),
    "s3": tiny(
        "s3-micro",
        s3.declare(((8,), (8, 16), (16,), (16,)), ((1, 2),) * 4, ((1,), (2, 3), (1,), (1,)), ((2,),) * 4, (1, 2)),
        vary="stage2",
        img_size=16,
        patch_size=2,
        head_dim=4,
    ),
    "trionet": tiny(
        "trionet-micro",
        trionet.declare((32, 64, 64, 64), ((1,), (2, 3), (1,), (1,)), (3,), (2,)),
        vary="stage2",
        img_size=16,
        stem_stride=1,
        stem_dim=8,
    ),
    "esformer": tiny(
        "esformer-s0",
        esformer.declare(
            ((8,), (8,), (16, 24), (16,)), ((1,), (1,), (2, 3), (1,)), ((), (), (16, 32), ()), (3,), (2, 4)
        ),
        vary="stage3",
        img_size=16,
        patch_size=1,
    ),
}


HEADS = ("num_heads.stage1", "num_heads.stage2", "num_heads.stage3")


def size_genes(space: Space) -> dict[str, Choice]:
    """The dimensions that decide about size and have a choice."""
    return {name: c for name, c in space.root.dimensions() if c.role == "size" and c.cardinality > 1}


def pairs(space: Space) -> Iterator[tuple[str, Arch, Arch]]:
    """Each size gene with two archs that differ in it alone: one has its smallest value, one its largest.

    All other genes are as small as can be. (PiT's heads of a stage divide those of the next, which therefore has more.)
    """
    for name, choice in size_genes(space).items():
        larger = {
            "num_heads.stage1": ("num_heads.stage2", "num_heads.stage3"),
            "num_heads.stage2": ("num_heads.stage3",),
        }
        raised = dict.fromkeys(larger.get(name, ()), choice.values[-1])
        small, large = (members(space, {**raised, name: choice.values[end]}) for end in (0, -1))
        yield next((name, a, b) for a, b in zip(small, large, strict=True) if a != b)


def members(space: Space, values: dict[str, Any]) -> list[Arch]:
    """The smallest archs with these values, one for each alternative of its blocks."""
    fixed = {name: Choice(values.get(name, c.values[0]), role=c.role) for name, c in space.root.dimensions()}
    return corners(space.root.replace_choices(fixed))
