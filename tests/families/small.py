"""Spaces of every family, made small enough for tests, and the golden files to check against."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from nasformer.families.esformer import declare as declare_esformer
from nasformer.families.pit import declare as declare_pit
from nasformer.families.s3 import declare as declare_s3
from nasformer.families.trionet import declare as declare_trionet
from nasformer.layers.stem import to_2tuple
from nasformer.models.registry import list_families, list_spaces
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Struct

M = TypeVar("M", bound=nn.Module)

GOLDEN = Path(__file__).parents[1] / "golden"
SHARED_GOLDEN = Path(__file__).parents[2] / ".." / "shared" / "golden"

# What is small depends on how a family cuts the image; a family that 64 pixels do not suit has its line here.
SMALL: dict[str, dict[str, Any]] = {
    "autoformer": {"img_size": 32, "patch_size": 8},
    "esformer": {"img_size": 32, "patch_size": 2},  # maps of 16 x 16 down to 2 x 2
    "pit": {"img_size": 17, "patch_size": 3, "stride": 2},  # 8 x 8 patches that overlap, then 4 x 4, then 2 x 2
    "s3": {"img_size": 32, "patch_size": 2, "head_dim": 8},  # maps of 16 x 16 down to 2 x 2
    "trionet": {"img_size": 16, "stem_stride": 1, "stem_dim": 8, "last_gamma": 0.5},  # with 0, no branch would learn
}

# Narrower, all else the same: the largest net of pit-small has 258 M parameters, that of trionet-wide 75 M.
# (Windows of S3 shrink with its maps: where they do not divide them, the largest is not the dearest.)
NARROW: dict[str, Struct] = {
    "pit-small": declare_pit((9, 12, 15, 18), (3, 6, 12)),
    **dict.fromkeys(
        ("s3", "s3-tiny", "s3-small", "s3-base"),
        declare_s3(
            ((8, 16, 24), (16, 24, 32), (24, 32, 40), (32, 40, 48)),
            ((1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 6)),
            window=((4, 8), (4, 8), (2, 4), (2,)),
        ),
    ),
    **dict.fromkeys(("trionet", "trionet-wide", "trionet-small"), declare_trionet((32, 64, 64, 128), num_heads=(2, 4))),
}


# Of a family without a space for small machines: all kinds of its choices, in small numbers.
FAMILY_ROOTS: dict[str, Struct] = {
    "pit": declare_pit((4, 6), (1, 2, 4), depth=((1, 2),) * 3, mlp_ratio=(2, 3)),
    "esformer": declare_esformer(
        embed_dim=((8, 16),) * 4,
        depth=((1, 2),) * 4,
        qkv_dim=((), (), (16, 32), (16, 32)),
        kernel=(3, 5),
        expansion=(2, 3),
    ),
}


def small_space(space: Space, **changes: Any) -> Space:
    """The same archs, or narrower ones, on few pixels and 10 classes."""
    options = {"num_classes": 10, **SMALL.get(space.model.family, {"img_size": 64}), **changes}
    known = space.model.default_options()
    space = replace(space, root=NARROW.get(space.name, space.root))
    return space.with_options(**{name: value for name, value in options.items() if name in known})


def family_space(family: str) -> Space:
    """A small space for all that builds or runs nets: the family's other spaces differ in their numbers alone."""
    spaces = [space for space in SPACES.values() if space.model.family == family]
    space = next((space for space in spaces if space.name.endswith("-micro")), spaces[0])
    return replace(space, root=FAMILY_ROOTS.get(family, space.root))


def image_size(space: Space) -> tuple[int, int]:
    return space.image_shape[1:]


def images(space: Space, batch: int = 2, seed: int = 0) -> Tensor:
    channels = space.full_options.get("in_chans", 3)
    size = to_2tuple(space.full_options["img_size"])
    return torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def randomise(module: M, seed: int = 0) -> M:
    """Moves every weight off its initial value: with biases of 0 and scales of 1, a wrong slice goes unseen."""
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.05)
    for name, statistic in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):  # variances stay positive
            statistic.add_(torch.rand(statistic.shape, generator=generator), alpha=0.05)
    return module


def some_archs(space: Space, count: int = 1) -> dict[str, Arch]:
    """The smallest, the largest and random members, by label."""
    extremes = {"smallest": space.root.smallest(), "largest": space.root.largest()}
    return extremes | {f"random{seed}": space.sample(seed) for seed in range(count)}


def golden(name: str) -> Any:
    """The content of a golden JSON file; skips the test where there is none."""
    return json.loads(golden_path(name).read_text())


def golden_path(name: str) -> Path:
    """A golden file of the repository, or of ../shared, which not everybody has."""
    for folder in (GOLDEN, SHARED_GOLDEN):
        if (folder / name).is_file():
            return folder / name
    pytest.skip(f"needs ../shared/golden/{name}, which is not part of the repository")


SPACES = {name: small_space(space) for name, space in list_spaces().items()}
FAMILIES = {family: family_space(family) for family in list_families()}
each_space = pytest.mark.parametrize("space", [pytest.param(space, id=name) for name, space in SPACES.items()])
each_family = pytest.mark.parametrize("space", [pytest.param(space, id=name) for name, space in FAMILIES.items()])
each_arch = pytest.mark.parametrize(
    ("space", "arch"),
    [
        pytest.param(space, arch, id=f"{family}-{label}")
        for family, space in FAMILIES.items()
        for label, arch in some_archs(space).items()
    ],
)
