"""The E-T error, on numbers that one can check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nasformer.space_search import Quality, group_errors, measure_quality


def test_the_mean_of_all_and_of_the_best() -> None:
    found = measure_quality([30, 10, 20, 60], share=0.5)
    assert found == Quality(expected=30, top=15)
    assert found.et == 22.5


def test_the_settings_of_s3() -> None:
    """50 of 1000: errors of 1 to 1000 in any order."""
    errors = np.random.default_rng(0).permutation(np.arange(1.0, 1001.0)).tolist()
    assert measure_quality(errors, share=50 / 1000) == Quality(expected=500.5, top=25.5)


def test_the_top_is_at_least_one() -> None:
    assert measure_quality([5, 7, 9], share=0.01) == Quality(expected=7, top=5)
    assert measure_quality([5, 7, 9], share=1.0) == Quality(expected=7, top=7)
    assert measure_quality([4.0], share=0.05) == Quality(4, 4)


def test_a_share_may_take_a_part_of_a_sample() -> None:
    """0.6 of 5 samples are 3; 0.5 of them are two and a half."""
    assert measure_quality([1, 2, 3, 4, 5], share=0.6).top == pytest.approx(2)
    assert measure_quality([1, 2, 3, 4, 5], share=0.5).top == pytest.approx((1 + 2 + 3 / 2) / 2.5)


def test_groups_by_weight() -> None:
    """A sample counts in a group as far as it belongs there."""
    errors = np.array([10.0, 20.0, 40.0])
    weights = np.array([[1.0, 0.0, 1.0], [0.0, 0.5, 1.5], [0.25, 0.0, 0.25], [0.0, 0.0, 0.0]])
    expected, top = group_errors(errors, weights, share=0.5)
    np.testing.assert_allclose(expected[:3], [25, 35, 25])
    # Half of a weight of 2 is 1: the first alone; then half of each. A group that weighs less than 1 is all top.
    np.testing.assert_allclose(top[:3], [10, 30, 25])
    assert np.isnan(expected[3])
    assert np.isnan(top[3])
