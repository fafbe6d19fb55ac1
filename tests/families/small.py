"""Spaces of every family, made small enough for tests, and the golden files to check against."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from nasformer.families.base import model_options
from nasformer.families.pit import declare as declare_pit
from nasformer.families.registry import list_spaces
from nasformer.families.s3 import declare as declare_s3
from nasformer.families.space import Space
from nasformer.families.trionet import declare as declare_trionet
from nasformer.space.arch import Arch
from nasformer.space.struct import Struct

M = TypeVar("M", bound=nn.Module)

GOLDEN = Path(__file__).parents[2] / ".." / "shared" / "golden"

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


def small_space(space: Space, **changes: Any) -> Space:
    """The same archs, or narrower ones, on few pixels and 10 classes."""
    options = {"num_classes": 10, **SMALL.get(space.model.family, {"img_size": 64}), **changes}
    known = model_options(space.model)
    space = replace(space, root=NARROW.get(space.name, space.root))
    return space.with_options(**{name: value for name, value in options.items() if name in known})


def image_size(space: Space) -> tuple[int, int]:
    size = (model_options(space.model) | dict(space.options))["img_size"]
    return (size, size) if isinstance(size, int) else tuple(size)


def images(space: Space, batch: int = 2, seed: int = 0) -> Tensor:
    channels = (model_options(space.model) | dict(space.options)).get("in_chans", 3)
    return torch.randn(batch, channels, *image_size(space), generator=torch.Generator().manual_seed(seed))


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
    path = GOLDEN / name
    if not path.is_file():
        pytest.skip(f"needs ../shared/golden/{name}, which is not part of the repository")
    return path


SPACES = {name: small_space(space) for name, space in list_spaces().items()}
each_space = pytest.mark.parametrize("space", [pytest.param(space, id=name) for name, space in SPACES.items()])
each_arch = pytest.mark.parametrize(
    ("space", "arch"),
    [
        pytest.param(space, arch, id=f"{name}-{label}")
        for name, space in SPACES.items()
        for label, arch in some_archs(space).items()
    ],
)
