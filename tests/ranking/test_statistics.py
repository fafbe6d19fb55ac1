from __future__ import annotations

import math
import warnings
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from scipy import stats

from nasformer.errors import UserError
from nasformer.proxies.ranking import (
    Estimate,
    Resamples,
    kendall_by_band,
    partial,
    partial_spearman,
    percentiles,
    signs,
    size_bands,
)
from nasformer.utils.statistics import kendall, spearman, undefined

from .tables import interval, within

few = st.integers(0, 4)  # a small range, so that ties are common
rows_of_three = st.lists(st.tuples(few, few, few), min_size=3, max_size=14)


def tau_b(pairs: list[tuple[int, int]]) -> float:
    """From the textbook: pairs are the signs of x and of y of the pairs of rows to count."""
    agree = sum(a * b for a, b in pairs)
    spread = sum(a != 0 for a, _ in pairs) * sum(b != 0 for _, b in pairs)
    return agree / math.sqrt(spread) if spread else math.nan


def pair_signs(x: list[int], y: list[int], group: list[int] | None = None) -> list[tuple[int, int]]:
    kept = [(i, j) for i, j in combinations(range(len(x)), 2) if group is None or group[i] == group[j]]
    return [((x[i] > x[j]) - (x[i] < x[j]), (y[i] > y[j]) - (y[i] < y[j])) for i, j in kept]


@given(rows_of_three)
def test_correlations_with_ties(rows: list[tuple[int, int, int]]) -> None:
    x, y, _ = map(list, zip(*rows, strict=True))
    assume(len(set(x)) > 1)
    assume(len(set(y)) > 1)
    assert kendall(x, y) == pytest.approx(tau_b(pair_signs(x, y)))
    assert spearman(x, y) == pytest.approx(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])


@settings(deadline=None, max_examples=40)
@given(rows_of_three, st.integers(0, 99))
def test_every_resample_is_what_scipy_makes_of_it(rows: list[tuple[int, int, int]], seed: int) -> None:
    x, y, group = map(np.array, zip(*rows, strict=True))
    resamples = Resamples(len(x), 8, seed)
    same = np.equal.outer(group, group).astype(np.float32)
    found = (
        resamples.kendall(signs(x), signs(y)),
        resamples.spearman(signs(x), signs(y)),
        resamples.kendall(signs(x), signs(y), same),
    )
    for weights, *values in zip(resamples.weights, *found, strict=True):
        taken = np.repeat(np.arange(len(x)), weights.astype(int))
        assert len(taken) == len(x)
        a, b, c = x[taken], y[taken], group[taken]
        expected = (kendall(a, b), spearman(a, b), tau_b(pair_signs(a.tolist(), b.tolist(), c.tolist())))
        none = [math.nan if value is None else value for value in expected]
        assert values == pytest.approx(none, nan_ok=True)


def test_the_first_of_the_resamples_is_the_table_itself() -> None:
    assert (Resamples(5, 3).weights[0] == 1).all()
    assert not (Resamples(50, 3).weights[1:] == 1).all()


@pytest.mark.parametrize("statistic", ["kendall", "spearman"])
def test_interval_repeats_itself_by_seed_and_holds_the_estimate(statistic: str) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 60))
    y += x
    first = interval(x, y, statistic, seed=3)
    assert first == interval(x, y, statistic, seed=3)
    assert first != interval(x, y, statistic, seed=4)
    assert first is not None
    assert first[0] < {"kendall": kendall, "spearman": spearman}[statistic](x, y) < first[1]  # type: ignore[operator]
    wide, narrow = (interval(x, y, statistic, 3, level=level) for level in (0.99, 0.5))
    assert wide[0] < first[0] < narrow[0] < narrow[1] < first[1] < wide[1]  # type: ignore[index]


def test_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Of 200 samples of normal pairs with correlation 0.6, whose tau is known in closed form."""
    truth, rng, held = 2 / math.pi * math.asin(0.6), np.random.default_rng(0), 0
    for seed in range(200):
        x, e = rng.normal(size=(2, 80))
        low, high = interval(x, 0.6 * x + 0.8 * e, "kendall", seed, resamples=300)  # type: ignore[misc]
        held += low <= truth <= high
    assert 178 <= held <= 199  # 190 expected, 3.1 its standard deviation


def test_partial_of_normal_numbers_is_the_correlation_of_residuals() -> None:
    x, y, z = np.random.default_rng(0).normal(size=(3, 40))
    x, y = x + z, y - z + 0.5 * x
    left, right = (values - np.polyval(np.polyfit(z, values, 1), z) for values in (x, y))
    r = np.corrcoef([x, y, z])
    assert partial(r[0, 1], r[0, 2], r[1, 2]) == pytest.approx(np.corrcoef(left, right)[0, 1])
    assert partial(None, 0.1, 0.1) is None
    assert partial(0.9, 1.0, 0.9) is None


def test_ranks_do_not_change_under_a_logarithm() -> None:
    x, y, size = np.exp(np.random.default_rng(0).normal(size=(3, 50)))
    assert partial_spearman(np.log(x), y, np.log(size)) == pytest.approx(partial_spearman(x, y, size))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 7))
def test_bands_go_by_size_alone(size: list[int], bands: int) -> None:
    band = size_bands(size, bands)
    assert set(band) <= set(range(bands))
    for i, j in combinations(range(len(size)), 2):
        if size[i] == size[j]:
            assert band[i] == band[j]
        else:
            assert (band[i] <= band[j]) == (size[i] < size[j]) or band[i] == band[j]


@given(st.permutations(range(23)), st.integers(1, 7))
def test_bands_hold_equally_many_rows(size: list[int], bands: int) -> None:
    counts = np.bincount(size_bands(size, bands), minlength=bands)
    assert counts.max() - counts.min() <= 1


def test_bands_need_to_be_one_or_more() -> None:
    with pytest.raises(UserError, match="bands is 0"):
        size_bands([1, 2, 3], 0)


def test_within_bands_counts_only_pairs_of_one_band() -> None:
    """A score that is nothing but the band: perfect over all rows, without meaning within them."""
    size = np.arange(40)
    y = np.random.default_rng(0).normal(size=40)
    coarse, fine = size // 10, (size // 10) * 100 + y
    band = size_bands(size, bands=4)
    assert within(coarse, fine, band) == Estimate(None, None)
    reversed_bands = -coarse * 100 + y
    assert kendall(reversed_bands, fine) < 0  # type: ignore[operator]
    assert within(reversed_bands, fine, band).value == pytest.approx(1)
    assert kendall_by_band(reversed_bands, fine, band, bands=4) == pytest.approx([1] * 4)
    mixed = within(np.random.default_rng(1).normal(size=40), fine, band)
    low, high = mixed.interval  # type: ignore[misc]
    assert low < mixed.value < high  # type: ignore[operator]


def test_what_is_constant_is_none_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y, why in (([1, 1, 1], [1, 2, 3], "scores"), ([1, 2, 3], [5, 5, 5], "accuracies")):
            assert undefined(x, y) == f"all 3 {why} are equal"
            assert kendall(x, y) is None
            assert spearman(x, y) is None
            assert interval(x, y, "kendall", seed=0) is None
            assert kendall_by_band(x, y, size_bands([1, 2, 3], 2), bands=2) == [None, None]
        assert kendall([1], [1]) is None
    assert percentiles([math.nan, math.nan]) is None
    assert percentiles([math.nan, 2.0]) == (2.0, 2.0)
