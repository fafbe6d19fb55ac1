from __future__ import annotations

import random

import pytest
import torch

from nasformer.data.augment import Mixing, cut, partners, soft_targets
from nasformer.data.options import AugmentOptions


def mixing(mixup: float = 0.0, cutmix: float = 0.0, probability: float = 1.0, smoothing: float = 0.0) -> Mixing:
    options = AugmentOptions(mixup=mixup, cutmix=cutmix, mix_prob=probability, switch_prob=0.5, smoothing=smoothing)
    return Mixing(options, num_classes=6)


LABELS = torch.arange(6)
IMAGES = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 3, 16, 16)


def test_soft_targets() -> None:
    targets = soft_targets(torch.tensor([2, 0]), 5, 0.1)
    assert targets.sum(1).tolist() == pytest.approx([1, 1])
    assert targets[0].tolist() == pytest.approx([0.02, 0.02, 0.92, 0.02, 0.02])


def test_partners_are_neighbours() -> None:
    assert partners(6).tolist() == [1, 0, 3, 2, 5, 4]
    assert partners(3).tolist() == [1, 0, 2]
    assert partners(1).tolist() == [0]


@pytest.mark.parametrize("step", range(5))
def test_mixup_mixes_images_and_targets_alike(step: int) -> None:
    mixer = mixing(mixup=0.8)
    keep = mixer.draw(0, step, 16, 16).keep
    x, targets = mixer(IMAGES, LABELS, 0, step)
    assert 0 < keep < 1
    for row, partner in enumerate([1, 0, 3, 2, 5, 4]):
        assert x[row].flatten().tolist() == pytest.approx([row * keep + partner * (1 - keep)] * 768, abs=1e-5)
        assert targets[row, row].item() == pytest.approx(keep)
        assert targets[row, partner].item() == pytest.approx(1 - keep)
    assert targets.sum(1).tolist() == pytest.approx([1] * 6)


@pytest.mark.parametrize("step", range(8))
def test_cutmix_pastes_a_box_whose_area_is_in_the_targets(step: int) -> None:
    x, targets = mixing(cutmix=1.0)(IMAGES, LABELS, 0, step)
    for row, partner in enumerate([1, 0, 3, 2, 5, 4]):
        pasted = x[row, 0] == partner
        assert (pasted | (x[row, 0] == row)).all()
        assert pasted.sum() == pasted.any(0).sum() * pasted.any(1).sum()
        assert targets[row, partner].item() == pytest.approx(pasted.float().mean().item(), abs=1e-6)
        assert targets[row].sum().item() == pytest.approx(1)
    assert IMAGES[0].eq(0).all()


def test_smoothing_and_mixing_add_up() -> None:
    _, targets = mixing(mixup=1.0, smoothing=0.3)(IMAGES, LABELS, 0, 0)
    assert targets.sum(1).tolist() == pytest.approx([1] * 6)
    assert targets.min().item() == pytest.approx(0.05)


def test_the_odd_one_out_stays_by_itself() -> None:
    x, targets = mixing(mixup=1.0)(IMAGES[:3], LABELS[:3], 0, 0)
    assert x[2].flatten().tolist() == pytest.approx([2.0] * 768)
    assert targets[2].tolist() == pytest.approx([0, 0, 1, 0, 0, 0])


def test_modes_and_probabilities() -> None:
    options = AugmentOptions(mixup=0.8, cutmix=1.0, mix_prob=0.75, switch_prob=0.4, smoothing=0.0)
    drawn = [Mixing(options, 6).draw(0, step, 16, 16) for step in range(3000)]
    mixed = [what for what in drawn if what.keep < 1 or what.box]
    assert len(mixed) / 3000 == pytest.approx(0.75, abs=0.03)
    assert sum(what.box is not None for what in mixed) / len(mixed) == pytest.approx(0.4, abs=0.04)
    assert all(what.box is None for what in (mixing(mixup=1.0).draw(0, s, 8, 8) for s in range(50)))
    assert all(what.box is not None for what in (mixing(cutmix=1.0).draw(0, s, 8, 8) for s in range(50)))
    assert mixing().draw(0, 0, 8, 8).keep == 1


def test_lambda_is_beta() -> None:
    keeps = torch.tensor([mixing(mixup=0.8).draw(1, step, 8, 8).keep for step in range(4000)])
    assert keeps.mean().item() == pytest.approx(0.5, abs=0.02)
    assert keeps.var().item() == pytest.approx(1 / (4 * (2 * 0.8 + 1)), abs=0.005)


def test_nothing_to_mix_returns_the_images_as_they_are() -> None:
    x, targets = mixing()(IMAGES, LABELS, 0, 0)
    assert x is IMAGES
    assert torch.equal(targets, torch.eye(6))


def test_cut_clips_at_the_border() -> None:
    source = random.Random(0)
    for _ in range(200):
        what = cut(source.random(), source, 9, 16)
        assert what.box is not None
        top, bottom, left, right = what.box
        assert 0 <= top <= bottom <= 9
        assert 0 <= left <= right <= 16
        assert what.keep == pytest.approx(1 - (bottom - top) * (right - left) / 144)
