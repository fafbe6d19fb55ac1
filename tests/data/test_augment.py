from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nasformer.data.augment import Augment
from nasformer.data.images import normalise
from nasformer.data.options import AugmentOptions

SETTINGS: dict[str, dict[str, Any]] = {
    "nothing": {"crop": "none", "hflip": 0.0},
    "flip": {"crop": "none"},
    "pad": {},
    "resized": {"crop": "resized"},
    "rotate": {"rotate": 20.0},
    "randaugment": {"randaugment": "rand-m9-mstd0.5-inc1"},
    "three layers": {"randaugment": "rand-m9-n3-p1-mstd101-inc1", "crop": "resized"},
    "jitter": {"color_jitter": 0.4},
    "erasing": {"erasing": 0.5},
    "mixup": {"mixup": 0.8},
    "cutmix": {"cutmix": 1.0},
    "autoformer": {
        "crop": "resized",
        "randaugment": "rand-m9-mstd0.5-inc1",
        "color_jitter": 0.4,
        "erasing": 0.25,
        "mixup": 0.8,
        "cutmix": 1.0,
    },
}


def make(channels: int = 3, **settings: Any) -> Augment:
    mean, std = (0.4, 0.5, 0.6)[:channels], (0.2, 0.25, 0.3)[:channels]
    return Augment(AugmentOptions(**settings), mean, std, num_classes=10)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_ranks_produce_the_rows_of_the_whole_batch(photo: Callable[..., Tensor], name: str, channels: int) -> None:
    augment = make(channels, **SETTINGS[name])
    images, labels = photo(48, channels, size=16), torch.arange(48) % 10
    for step in range(3):
        x, targets = augment(images, labels, seed=5, step=step)
        for world in (2, 3):
            parts = [
                augment(images.chunk(world)[rank], labels.chunk(world)[rank], 5, step, rank, world)
                for rank in range(world)
            ]
            assert torch.equal(torch.cat([part for part, _ in parts]), x)
            assert torch.equal(torch.cat([part for _, part in parts]), targets)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_batch_depends_on_seed_and_step_alone(photo: Callable[..., Tensor], name: str) -> None:
    images, labels = photo(32, size=16), torch.arange(32) % 10
    before = images.clone()
    first = make(**SETTINGS[name])(images, labels, 0, 3)
    torch.rand(5)
    again = make(**SETTINGS[name])(images, labels, 0, 3)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(images, before)
    assert first[0].dtype == first[1].dtype == torch.float32
    assert first[1].sum(1).tolist() == pytest.approx([1] * 32, abs=1e-5)
    if name != "nothing":
        assert not torch.equal(make(**SETTINGS[name])(images, labels, 0, 4)[0], first[0])
        assert not torch.equal(make(**SETTINGS[name])(images, labels, 1, 3)[0], first[0])


def test_without_augmentation_images_are_normalised(photo: Callable[..., Tensor]) -> None:
    images = photo(4)
    x, targets = make(crop="none", hflip=0.0, smoothing=0.0)(images, torch.arange(4), 0, 0)
    assert torch.equal(x, normalise(images, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)))
    assert torch.equal(targets.argmax(1), torch.arange(4))


def test_switching_one_thing_on_leaves_the_others_as_they_were(photo: Callable[..., Tensor]) -> None:
    images, labels = photo(32), torch.zeros(32, dtype=torch.int64)
    plain, _ = make()(images, labels, 0, 0)
    erased, _ = make(erasing=1.0)(images, labels, 0, 0)
    assert 0.5 < (plain == erased).float().mean() < 0.99


def test_color_jitter_keeps_to_its_range(photo: Callable[..., Tensor]) -> None:
    grey = torch.full((500, 1, 4, 4), 100, dtype=torch.uint8)
    x, _ = make(1, crop="none", hflip=0.0, color_jitter=0.4)(grey, torch.zeros(500, dtype=torch.int64), 0, 0)
    values = x[:, 0, 0, 0] * 0.2 * 255 + 0.4 * 255
    assert values.min().item() == pytest.approx(60, abs=1.5)
    assert values.max().item() == pytest.approx(140, abs=1.5)


def test_color_jitter_gives_way_to_randaugment(photo: Callable[..., Tensor]) -> None:
    images, labels = photo(16), torch.zeros(16, dtype=torch.int64)
    with_jitter = make(randaugment="rand-m9-inc1", color_jitter=0.4)(images, labels, 0, 0)[0]
    assert torch.equal(with_jitter, make(randaugment="rand-m9-inc1")(images, labels, 0, 0)[0])


def test_randaugment_changes_what_timm_would(photo: Callable[..., Tensor]) -> None:
    """Two layers with probability one half leave a quarter of the images alone (and some have no effect)."""
    images, labels = photo(2000, size=8), torch.zeros(2000, dtype=torch.int64)
    plain = make(crop="none", hflip=0.0)(images, labels, 0, 0)[0]
    x = make(crop="none", hflip=0.0, randaugment="rand-m9-mstd0.5-inc1")(images, labels, 0, 0)[0]
    same = (x == plain).flatten(1).all(1).float().mean().item()
    assert 0.25 - 0.03 < same < 0.25 + 0.08


class DeviceWork(TorchDispatchMode):
    """Counts what a device would have to launch; the meta device stands in for it."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else [result]
        self.launches += any(isinstance(r, Tensor) and r.is_meta for r in results) and not func.is_view
        if func is torch.ops.aten._to_copy.default and args[0].device != result.device:
            self.waits += not (kwargs or {}).get("non_blocking")
        return result


@pytest.mark.parametrize("name", ["pad", "three layers", "autoformer"])
def test_a_device_gets_few_launches_and_never_waits(name: str) -> None:
    """Waits are blocking copies to the device; reading a value back would raise, as meta has none."""
    launches = []
    for batch in (512, 2048):
        images = torch.zeros(batch, 3, 32, 32, dtype=torch.uint8, device="meta")
        labels = torch.zeros(batch, dtype=torch.int64, device="meta")
        augment = make(**SETTINGS[name])
        augment(images, labels, 0, 0)
        with DeviceWork() as work:
            augment(images, labels, 0, 0)
        launches.append(work.launches)
        assert work.waits == 0
    assert launches[0] == launches[1]  # no loop over samples
    assert launches[0] <= {"three layers": 450, "randaugment": 320, "autoformer": 330}.get(name, 70)
