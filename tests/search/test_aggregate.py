"""Rank aggregation against scipy's ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import rankdata

from nasformer.search.pareto import aggregate_ranks

few_values = st.sampled_from([-1.5, 0.0, 2.0, 3.0, 1e300])  # few, so that there are ties
tables = st.integers(1, 6).flatmap(lambda m: st.lists(st.lists(few_values, min_size=m, max_size=m), min_size=1))


@given(tables)
def test_sum_of_log_ranks(columns: list[list[float]]) -> None:
    expected = sum(np.log(rankdata(column) / len(column)) for column in columns)
    assert aggregate_ranks(columns) == pytest.approx(list(expected))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_loses_and_leaves_the_others_alone(bad: float) -> None:
    good = [[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]]
    with_bad = [[1.0, bad, 3.0, 2.0], [5.0, 9.0, 4.0, 6.0]]
    first, lost, *rest = aggregate_ranks(with_bad)
    assert lost == -math.inf
    assert [first, *rest] == aggregate_ranks(good)


def test_best_in_everything_is_zero_and_highest() -> None:
    scores = aggregate_ranks([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    assert scores[2] == 0 == max(scores)


def test_a_weak_spot_weighs_more_than_a_strong_one() -> None:
    """Ranks (1, 3) and (2, 2) have the same sum; the balanced candidate wins."""
    lopsided, balanced, _ = aggregate_ranks([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    assert balanced > lopsided


def test_nothing_to_rank() -> None:
    assert aggregate_ranks([[], []]) == []
    assert aggregate_ranks([[math.nan]]) == [-math.inf]


def test_columns_must_agree() -> None:
    with pytest.raises(ValueError, match="shorter"):
        aggregate_ranks([[1.0, 2.0], [1.0]])
