from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor


@pytest.fixture
def photo() -> Callable[..., Tensor]:
    """Smooth random images, the kind on which interpolation is well defined: uint8 [b, c, size, size]."""

    def make(count: int, channels: int = 3, size: int = 32, seed: int = 0) -> Tensor:
        source = torch.Generator().manual_seed(seed)
        coarse = torch.rand(count, channels, 5, 5, generator=source) * 255
        fine = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic", align_corners=True)
        return fine.clamp(0, 255).to(torch.uint8)

    return make


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write count images a class; the colour of an image tells its class and its number in the class."""
    from PIL import Image

    def make(splits: dict[str, dict[str, int]], size: tuple[int, int] = (12, 12), ext: str = "png") -> Path:
        for split, classes in splits.items():
            for label, (name, count) in enumerate(classes.items()):
                folder = tmp_path / "set" / split / name
                folder.mkdir(parents=True)
                for number in range(count):
                    noise = np.random.default_rng(number).integers(0, 50, (*size, 3))
                    pixels = (noise + np.array([100 * label, number, len(split) * 20])).astype(np.uint8)
                    Image.fromarray(pixels).save(folder / f"{number:04d}.{ext}")
        return tmp_path / "set"

    return make
