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

from nasformer.ranking.statistics import (
    BANDS,
    Estimate,
    Floats,
    Interval,
    Resamples,
    kendall_by_band,
    partial_kendall,
    partial_spearman,
    same_band,
    signs,
    size_bands,
)
from nasformer.ranking.table import MIN_ROWS, Table, trivial_counts
from nasformer.utils.statistics import undefined


@dataclass(frozen=True)
class Comparison:
    """Tau of a score, and that less tau of its rival on the same rows, resampled together."""

    rival: str
    tau: Estimate
    difference: Estimate

    @property
    def better(self) -> bool:
        """Better than the rival and than chance: to be above a rival that ranks the wrong way round means little."""
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
