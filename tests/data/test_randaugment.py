from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from timm.data import auto_augment as timm_ra
from torch import Tensor

from nasformer.data.augment import (
    AMOUNTS,
    COLOURS,
    NAMES,
    Layer,
    add_geometry,
    apply_colours,
    draw_layer,
    draw_move,
)
from nasformer.data.options import RandAugment
from nasformer.errors import UserError
from nasformer.utils.rng import Draws, generator

RECIPE = RandAugment.parse("rand-m9-mstd0.5-inc1")


def test_parse() -> None:
    assert RandAugment.parse("rand") == RandAugment()
    assert RandAugment.parse("rand-n3-p0.7-mmax15-m12") == RandAugment(
        magnitude=12, limit=15, layers=3, probability=0.7
    )


@pytest.mark.parametrize("text", ["m9", "rand-m", "rand-x3", "rand-tweights", "augmix-m3", "rand-m9-", "rand-inc-1"])
def test_parse_errors(text: str) -> None:
    with pytest.raises(UserError, match=r"cannot read RandAugment .*write it like rand-m9-mstd0.5-inc1"):
        RandAugment.parse(text)


def test_the_operations_are_those_of_timm() -> None:
    theirs = [name.replace("Increasing", "").replace("Rel", "") for name in timm_ra._RAND_INCREASING_TRANSFORMS]
    assert sorted(NAMES) == sorted(theirs)
    assert NAMES[: len(COLOURS)] == list(COLOURS)


@pytest.mark.parametrize("increasing", [True, False])
@pytest.mark.parametrize("magnitude", [0.0, 2.5, 9.0, 10.0])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("AutoContrast", "Equalize", "Invert")])
def test_amounts_are_those_of_timm(
    name: str, magnitude: float, increasing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_name = next(
        key
        for key in (timm_ra._RAND_INCREASING_TRANSFORMS if increasing else timm_ra._RAND_TRANSFORMS)
        if key.startswith(name) and (name != "Solarize" or key != "SolarizeAdd")
    )
    level = torch.tensor([magnitude / 10], dtype=torch.float64)
    for sign in (1.0, -1.0):
        monkeypatch.setattr(timm_ra, "_randomly_negate", lambda value, sign=sign: value * sign)
        theirs = timm_ra.LEVEL_TO_ARG[full_name](magnitude, {"translate_pct": 0.45})[0]
        ours = AMOUNTS[name](level, torch.tensor([sign]), increasing)
        assert ours.item() == pytest.approx(theirs)


def test_layers_draw_every_operation_half_of_the_time() -> None:
    layer = draw_layer(Draws(generator(0), 30_000), RECIPE)
    counts = torch.bincount(layer.operation + 1, minlength=16) / 30_000
    assert counts[0].item() == pytest.approx(0.5, abs=0.01)
    assert counts[1:].min() > 0.028
    assert counts[1:].max() < 0.039


def test_magnitudes_spread_and_stop_at_full() -> None:
    layer = draw_layer(Draws(generator(0), 30_000), RECIPE)
    degrees = layer.amount[layer.operation == NAMES.index("Rotate")].abs()
    assert degrees.max() == 30
    assert degrees.mean().item() == pytest.approx(27, abs=0.2)
    assert degrees.std().item() == pytest.approx(1.5, abs=0.2)
    uniform = draw_layer(Draws(generator(0), 30_000), RandAugment.parse("rand-m9-mstd101-inc1"))
    degrees = uniform.amount[uniform.operation == NAMES.index("Rotate")].abs()
    assert degrees.mean().item() == pytest.approx(13.5, abs=0.7)


def test_each_row_gets_its_own_operation(photo: Callable[..., Tensor]) -> None:
    images = photo(64)
    layer = draw_layer(Draws(generator(0), 64), RandAugment.parse("rand-m9-p1-inc1"))
    result = apply_colours(images.clone(), layer)
    for row, (number, amount) in enumerate(zip(layer.operation.tolist(), layer.amount, strict=True)):
        expected = images[row : row + 1]
        if NAMES[number] in COLOURS:
            expected = COLOURS[NAMES[number]](expected, amount[None].float())
        assert torch.equal(result[row : row + 1], expected)


def test_geometry_moves_the_rows_that_drew_it() -> None:
    size = (20, 30)
    numbers = torch.tensor([-1, 0, *(NAMES.index(n) for n in ("ShearX", "ShearY", "TranslateX", "TranslateY"))])
    layer = Layer(numbers, torch.full((6,), 0.25, dtype=torch.float64))
    still = draw_move(Draws(generator(0), 6), "none", 0, 0.0, 0.0, size)
    move = add_geometry(still, layer, size)
    assert move.resample.tolist() == [False, False, True, True, True, True]
    expected = torch.eye(3, dtype=torch.float64).repeat(6, 1, 1)
    expected[2, 0, 1] = expected[3, 1, 0] = 0.25
    expected[4, 0, 2], expected[5, 1, 2] = 0.25 * 30, 0.25 * 20
    assert torch.equal(move.matrix, expected)
