"""What the ranking bench found, as plain values ready for JSON: None where a number is not defined, never NaN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nasformer.ranking.resampling import Interval
from nasformer.ranking.statistics import Estimate


@dataclass(frozen=True)
class Comparison:
    """Tau of a score, and that less tau of its rival on the same rows, resampled together."""

    rival: str
    own: Estimate
    difference: Estimate

    @property
    def better(self) -> bool:
        """Better than the rival and than chance: to be above a rival that ranks the wrong way round means little."""
        return self.difference.above_zero and self.own.above_zero

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
class Score:
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
    proxies: Mapping[str, Score]
    counts: Mapping[str, Score]

    def to_dict(self) -> dict[str, Any]:
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
