"""Ranking by scores: each against the accuracies, against the parameter count and against the best trivial count.

Comparisons are paired: a score and its rival are ranked on the same rows and on the same resamples of them, which takes
out most of the noise that they share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from nasformer.errors import UserError
from nasformer.ranking.table import MIN_ROWS, Table, trivial_counts
from nasformer.utils.statistics import kendall, spearman, undefined

# Rank correlations with bootstrap intervals, over all rows, within size bands, and given the size.
#
# All of these go by ranks, so that a logarithm of a score or of the parameter count changes nothing. What is not
# defined, because all values are equal, is None or NaN.
#
# Of the two partial correlations, trust rho. A noisy copy of the size has a partial rho of about 0, as it should; its
# partial tau can be 0.1 or 0.2, since a product of two taus is not the tau that size alone would bring about.


Floats = NDArray[np.floating]
Interval = tuple[float, float]
BANDS = 5


def signs(values: ArrayLike) -> Floats:
    """The sign of the difference of every two values.

    >>> signs([2.0, 5.0, 5.0])
    array([[ 0., -1., -1.],
           [ 1.,  0.,  0.],
           [ 1.,  0.,  0.]], dtype=float32)
    """
    row = np.asarray(values, dtype=np.float64)
    return np.greater.outer(row, row).astype(np.float32) - np.less.outer(row, row).astype(np.float32)


class Resamples:
    """Rank correlations of the rows themselves and of bootstrap resamples of them, one value for each in this order.

    A resample is how often it holds each row: weights w. With s_ij = sign(x_i - x_j) and t_ij = sign(y_i - y_j),
    Kendall's tau-b of it is sum w_i w_j s_ij t_ij / sqrt(sum w_i w_j s_ij^2 * sum w_i w_j t_ij^2). A row's mid-rank in
    it is, up to a constant, half of sum_j w_j s_ij, and Spearman's rho is the weighted correlation of these, whose
    weighted means are 0. So a thousand resamples are a few matrix products. Copies of a row are ties in x and in y,
    which tau-b does not count.
    """

    def __init__(self, rows: int, resamples: int = 1000, seed: int = 0) -> None:
        drawn = np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), size=resamples)
        # Single precision is twice as fast, and exact: the products below add up whole numbers of at most `rows`.
        self.weights = np.concatenate([np.ones((1, rows)), drawn]).astype(np.float32)

    def kendall(self, x: Floats, y: Floats, pairs: Floats | None = None) -> Floats:
        """Tau-b from the signs of x and of y, over all pairs or over those that a matrix marks with 1."""
        marked = np.float32(1) if pairs is None else pairs
        return _ratio(self._total(x * y * marked), self._total(np.abs(x) * marked) * self._total(np.abs(y) * marked))

    def spearman(self, x: Floats, y: Floats) -> Floats:
        """Rho from the signs of x and of y."""
        ranks_x, ranks_y = ((self.weights @ each).astype(np.float64) for each in (x, y))
        products = (ranks_x * ranks_y, ranks_x**2, ranks_y**2)
        xy, xx, yy = (np.einsum("bi,bi->b", self.weights, product) for product in products)
        return _ratio(xy, xx * yy)

    def _total(self, matrix: Floats) -> Floats:
        """The sum of a matrix over all pairs of rows of each resample."""
        return np.einsum("bi,bi->b", self.weights @ matrix, self.weights, dtype=np.float64)


def _ratio(joint: Floats, squares: Floats) -> Floats:
    """joint / sqrt(squares), and NaN where all is tied."""
    return np.divide(joint, np.sqrt(squares), out=np.full_like(joint, np.nan), where=squares > 0)


@dataclass(frozen=True)
class Estimate:
    """A statistic and its bootstrap interval; both None where the statistic is not defined."""

    value: float | None
    interval: Interval | None

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.interval is not None and self.interval[0] > 0

    @classmethod
    def of(cls, values: Sequence[float] | Floats, level: float = 0.95) -> Estimate:
        """The estimate by the statistic of the rows themselves and, after it, of their resamples."""
        if not math.isfinite(values[0]):
            return cls(None, None)
        return cls(float(values[0]), percentiles(values[1:], level))


def percentiles(values: Sequence[float] | Floats, level: float = 0.95) -> Interval | None:
    """The interval that holds the middle part of the values; those that are not defined are left out."""
    finite = np.asarray(values)[np.isfinite(values)]
    if not len(finite):
        return None
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def size_bands(size: ArrayLike, bands: int = BANDS) -> NDArray[np.intp]:
    """The band of each row, 0 for the smallest: as many rows in each as equal sizes, which share a band, allow.

    >>> size_bands([10, 20, 30, 40, 50, 60], bands=3), size_bands([10, 10, 10, 40], bands=2)
    (array([0, 0, 1, 1, 2, 2]), array([0, 0, 0, 1]))
    """
    if bands < 1:
        raise UserError(f"bands is {bands}, expected 1 or more")
    ranks = stats.rankdata(size) - 0.5  # mid-ranks: the order of the rows, often by accuracy, must not matter
    return (ranks * bands / len(ranks)).astype(np.intp)


def same_band(band: NDArray[np.intp]) -> Floats:
    """Which pairs of rows share a band, as a matrix of ones and zeros."""
    return np.equal.outer(band, band).astype(np.float32)


def kendall_by_band(x: ArrayLike, y: ArrayLike, band: NDArray[np.intp], bands: int) -> list[float | None]:
    """Kendall's tau-b within each band; None for a band with fewer than two different values."""
    scores, accuracies = np.asarray(x), np.asarray(y)
    return [kendall(scores[band == number], accuracies[band == number]) for number in range(bands)]


def partial_kendall(x: ArrayLike, y: ArrayLike, size: ArrayLike) -> float | None:
    """Kendall's partial tau of score and accuracy given the size."""
    return partial(kendall(x, y), kendall(x, size), kendall(y, size))


def partial_spearman(x: ArrayLike, y: ArrayLike, size: ArrayLike) -> float | None:
    """Spearman's partial rho of score and accuracy given the size."""
    return partial(spearman(x, y), spearman(x, size), spearman(y, size))


def partial(xy: float | None, xz: float | None, yz: float | None) -> float | None:
    """The correlation of x and y given z, from the three correlations; None where z alone decides x or y.

    >>> partial(0.25, 0.5, 0.5), partial(0.5, 1.0, 0.5)
    (0.0, None)
    """
    if xy is None or xz is None or yz is None:
        return None
    rest = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / math.sqrt(rest) if rest > 1e-12 else None


@dataclass(frozen=True)
class Comparison:
    """Tau of a score, and that less tau of its rival on the same rows, resampled together."""

    rival: str
    tau: Estimate
    difference: Estimate

    @property
    def better(self) -> bool:
        """Whether it is better than the rival and than chance: a rival that ranks the wrong way round is no feat."""
        return self.difference.above_zero and self.tau.above_zero

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.rival,
            "difference": self.difference.value,
            "interval": _pair(self.difference.interval),
            "better": self.better,
        }


@dataclass(frozen=True)
class Versus:
    """The comparison over all rows, and the one over pairs of rows in the same size band."""

    overall: Comparison
    within: Comparison

    def to_dict(self) -> dict[str, Any]:
        return {**self.overall.to_dict(), "within_bands": self.within.to_dict()}


@dataclass(frozen=True)
class RankedScore:
    """How one score ranks. `reason` says why numbers are missing, where they are."""

    kendall: Estimate
    spearman: Estimate
    within: Estimate
    by_band: list[float | None]
    partial_kendall: float | None
    partial_spearman: float | None
    seconds_per_net: float | None
    missing: int
    beats: Mapping[str, Versus]  # "params" and "best_count"
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        content = {
            "kendall": self.kendall.value,
            "kendall_interval": _pair(self.kendall.interval),
            "spearman": self.spearman.value,
            "spearman_interval": _pair(self.spearman.interval),
            "kendall_within_bands": self.within.value,
            "kendall_within_bands_interval": _pair(self.within.interval),
            "kendall_by_band": self.by_band,
            "partial_kendall": self.partial_kendall,
            "partial_spearman": self.partial_spearman,
            "seconds_per_net": self.seconds_per_net,
            "missing": self.missing,
            "beats": {rival: versus.to_dict() for rival, versus in self.beats.items()},
        }
        return content if self.reason is None else {**content, "reason": self.reason}


@dataclass(frozen=True)
class Ranking:
    """How well proxies and trivial counts rank the archs of a table by one column of accuracies."""

    n: int
    target: str
    space: str
    bands: int
    proxies: Mapping[str, RankedScore]
    counts: Mapping[str, RankedScore]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: None where a number is not defined, never NaN."""
        return {
            "n": self.n,
            "target": self.target,
            "space": self.space,
            "bands": self.bands,
            "proxies": {name: score.to_dict() for name, score in self.proxies.items()},
            "counts": {name: score.to_dict() for name, score in self.counts.items()},
        }


def _pair(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)


def rank(
    table: Table,
    target: str,
    scores: Mapping[str, Sequence[float] | Floats],
    seconds_per_net: Mapping[str, float] | None = None,
    *,
    bands: int = BANDS,
    resamples: int = 1000,
    seed: int = 0,
) -> Ranking:
    """Ranks the archs of a table by each score and says how much of their accuracy the score knows.

    Args:
        target: The column of accuracies. Rows that lack it are left out, here and in the scores.
        scores: Higher is better; one value for each row of the table, not finite where there is none.
        seconds_per_net: How long a score took, where that is known.
    """
    for name, values in scores.items():
        if len(values) != len(table.archs):
            raise ValueError(f"{name} has {len(values)} scores for {len(table.archs)} rows")
    rows = table.rows_with(target)
    ranker = _Ranker(table.select(target), target, bands, resamples, seed)
    seconds = seconds_per_net or {}
    proxies = {
        name: ranker.rank(np.asarray(values, dtype=np.float64)[rows], seconds.get(name))
        for name, values in scores.items()
    }
    counts = {name: ranker.rank(values) for name, values in ranker.counts.items()}
    return Ranking(len(rows), target, table.space.name, bands, proxies, counts)


class _Ranker:
    """The accuracies of a table and its trivial counts, ready to rank by scores."""

    def __init__(self, table: Table, target: str, bands: int, resamples: int, seed: int) -> None:
        self.accuracy = np.asarray(table.accuracy[target])
        self.counts = {name: np.asarray(values) for name, values in trivial_counts(table.space, table.archs).items()}
        self.bands, self.resamples, self.seed = bands, resamples, seed
        self._rows: dict[bytes, _Rows] = {}

    def rank(self, values: Floats, seconds: float | None = None) -> RankedScore:
        finite = np.isfinite(values)
        missing = int(np.sum(~finite))
        if len(values) - missing < MIN_ROWS:
            return self._too_few(len(values) - missing, missing, seconds)
        return self._select(finite).rank(values[finite], missing, seconds)

    def _too_few(self, finite: int, missing: int, seconds: float | None) -> RankedScore:
        none, nan = Estimate(None, None), np.full(self.resamples + 1, np.nan)
        beats = self._select(np.full(len(self.accuracy), True)).beats(_Taus(nan, nan))
        reason = f"{finite} finite scores are too few to rank"
        return RankedScore(none, none, none, [None] * self.bands, None, None, seconds, missing, beats, reason)

    def _select(self, kept: np.ndarray) -> _Rows:
        """Some rows, prepared once for all scores that have them."""
        key = kept.tobytes()
        if key not in self._rows:
            counts = {name: values[kept] for name, values in self.counts.items()}
            self._rows[key] = _Rows(self.accuracy[kept], counts, self.bands, self.resamples, self.seed)
        return self._rows[key]


@dataclass(frozen=True)
class _Taus:
    """Kendall's tau of a score on some rows and on all resamples of them."""

    overall: Floats
    within: Floats


class _Rows:
    """Some rows of a table: accuracies, counts, size bands and resamples."""

    def __init__(self, accuracy: Floats, counts: Mapping[str, Floats], bands: int, resamples: int, seed: int) -> None:
        self.accuracy, self.size, self.bands = accuracy, counts["params"], bands
        self.band = size_bands(self.size, bands)
        self.resamples = Resamples(len(accuracy), resamples, seed)
        self._accuracy_signs, self._same_band = signs(accuracy), same_band(self.band)
        self.counts = {name: self.taus(values) for name, values in counts.items()}

    def taus(self, score: Floats) -> _Taus:
        x, y = signs(score), self._accuracy_signs
        return _Taus(self.resamples.kendall(x, y), self.resamples.kendall(x, y, self._same_band))

    def beats(self, taus: _Taus) -> dict[str, Versus]:
        """The score against the parameter count, and against the count that is best, over all rows and in bands."""
        overall = {name: count.overall for name, count in self.counts.items()}
        within = {name: count.within for name, count in self.counts.items()}
        rivals = {"params": ("params", "params"), "best_count": (_best(overall), _best(within))}
        return {
            name: Versus(
                Comparison(first, Estimate.of(taus.overall), Estimate.of(taus.overall - overall[first])),
                Comparison(second, Estimate.of(taus.within), Estimate.of(taus.within - within[second])),
            )
            for name, (first, second) in rivals.items()
        }

    def rank(self, values: Floats, missing: int, seconds: float | None) -> RankedScore:
        taus = self.taus(values)
        return RankedScore(
            kendall=Estimate.of(taus.overall),
            spearman=Estimate.of(self.resamples.spearman(signs(values), self._accuracy_signs)),
            within=Estimate.of(taus.within),
            by_band=kendall_by_band(values, self.accuracy, self.band, self.bands),
            partial_kendall=partial_kendall(values, self.accuracy, self.size),
            partial_spearman=partial_spearman(values, self.accuracy, self.size),
            seconds_per_net=seconds,
            missing=missing,
            beats=self.beats(taus),
            reason=undefined(values, self.accuracy),
        )


def _best(taus: Mapping[str, Floats]) -> str:
    """The name of the highest tau on the rows themselves; params where no count has one."""
    return max(taus, key=lambda name: taus[name][0] if math.isfinite(taus[name][0]) else -math.inf)
