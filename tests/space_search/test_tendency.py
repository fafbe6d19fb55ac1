"""The errors of a dimension's values and the line through them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct
from nasformer.space_search import Tendency, fit_line, fit_tendency, use_shares
from space_search import synthetic


def one_each(places: list[int], values: int) -> np.ndarray:
    """Samples that use one value each."""
    return np.eye(values)[places]


EXPECTED = {
    "blocks.depth": [0, 0, 1],
    "blocks.heads": [0.75, 0, 0.25],
    "blocks.ratio": [0.5, 0.25, 0.25],
    "act": [0, 1],
}


def test_an_arch_weighs_one_in_every_dimension() -> None:
    space = synthetic.space()
    arch = Arch.from_dict(
        {
            "blocks": [
                {"heads": 3, "ratio": 2.0, "window": 3},
                {"heads": 3, "ratio": 3.0, "window": 3},
                {"heads": 3, "ratio": 2.0, "window": 3},
                {"heads": 5, "ratio": 2.5, "window": 3},
            ],
            **{"width": 24, "act": "gelu", "fixed": 1},
        }
    )
    choices = {name: choice.values for name, choice in dimensions(space.root).items() if name in EXPECTED}
    found = use_shares(space.root, [arch], choices)
    assert {name: table[0].tolist() for name, table in found.items()} == EXPECTED


def test_what_an_arch_does_not_have_it_does_not_use() -> None:
    block = OneOf(conv=Struct(kernel=Choice(3, 5)), attention=Struct(heads=Choice(2, 4)))
    root = Struct(blocks=Repeat(block, depth=Choice(2)))
    arch = Arch(blocks=[{"conv": {"kernel": 5}}, {"conv": {"kernel": 3}}])
    found = use_shares(root, [arch], {"blocks.conv.kernel": (3, 5), "blocks.attention.heads": (2, 4)})
    assert found["blocks.conv.kernel"].tolist() == [[0.5, 0.5]]
    assert found["blocks.attention.heads"].tolist() == [[0, 0]]


def test_the_line_is_that_of_least_squares() -> None:
    x, y, weights = np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0, 2.0]), np.array([5.0, 1.0, 3.0])
    slope, intercept = fit_line(x, y, weights)
    assert np.polyfit(x, y, 1, w=np.sqrt(weights)) == pytest.approx([float(slope), float(intercept)])


def test_the_slope_is_error_by_step() -> None:
    """Errors 30, 28, 26 at widths of 192, 216, 240: two less for each step of 24."""
    places, errors = [2, 2, 1, 1, 0, 0], np.array([26.0, 26.0, 28.0, 28.0, 30.0, 30.0])
    found = fit_tendency((192, 216, 240), one_each(places, 3), errors, top=0.5, step=24, min_samples=2)
    assert found.counts == (2, 2, 2)
    assert found.et == (30, 28, 26)
    assert found.line is not None
    assert found.line.slope == pytest.approx(-2)
    assert found.line.intercept == pytest.approx(30 + 2 * 192 / 24)
    twice = fit_tendency((192, 216, 240), one_each(places, 3), errors, top=0.5, step=48, min_samples=2)
    assert twice.line is not None
    assert twice.line.slope == pytest.approx(-4)


def test_groups_have_their_own_top() -> None:
    """Value a has errors 10, 20, 30, 40 and b has 12, 14: half of each group is its top."""
    errors, places = np.array([10.0, 12.0, 14.0, 20.0, 30.0, 40.0]), [0, 1, 1, 0, 0, 0]
    found = fit_tendency((1, 2), one_each(places, 2), errors, top=0.5, step=1, min_samples=1)
    assert found.et == ((25 + 15) / 2, (13 + 12) / 2)
    assert found.line is not None
    assert found.line.slope == pytest.approx(12.5 - 20)


def test_values_with_few_samples_have_no_part_in_the_line() -> None:
    errors, places = np.array([1.0, 10.0, 10.0, 20.0, 20.0]), [2, 0, 0, 1, 1]
    found = fit_tendency((1, 2, 3), one_each(places, 3), errors, top=0.1, step=1, min_samples=2)
    assert found.et == (10, 20, 1)
    assert found.line is not None
    assert found.line.slope == pytest.approx(10)
    fewer = fit_tendency((1, 2, 3), one_each(places, 3), errors, top=0.1, step=1, min_samples=3)
    assert fewer == Tendency((2, 2, 1), (10, 20, 1), None)
    nobody = fit_tendency((1, 2), one_each([0] * 5, 2), errors, top=0.1, step=1, min_samples=0)
    assert nobody.et[1] is None
    assert nobody.line is None


def test_the_standard_error_is_that_of_other_draws() -> None:
    """Draw the samples many times: the slopes scatter about as much as one draw said they would."""
    rng, slopes, said = np.random.default_rng(0), [], []
    for _ in range(100):
        places = rng.integers(0, 3, 300)
        errors = 20 + 0.3 * places + rng.normal(0, 2, 300)
        order = np.argsort(errors)
        line = fit_tendency((1, 2, 3), one_each(places[order], 3), errors[order], top=0.05, step=1, min_samples=10).line
        assert line is not None
        slopes.append(line.slope)
        said.append(line.stderr)
    assert np.mean(slopes) == pytest.approx(0.3, abs=0.05)
    assert np.mean(said) == pytest.approx(np.std(slopes), rel=0.2)


def test_the_same_samples_say_the_same() -> None:
    shares, errors = one_each([0, 1] * 20, 2), np.arange(40.0)
    lines = [fit_tendency((1, 2), shares, errors, top=0.1, step=1, min_samples=1).line for _ in range(2)]
    assert lines[0] == lines[1]
    assert lines[0] is not None
    assert not math.isnan(lines[0].stderr)
