"""How well scores rank trained nets: against their accuracies, the parameter count and the best trivial count.

Comparisons are paired: a score and its rival are ranked on the same rows and on the same resamples of them, which takes
out most of the noise that they share. The accuracies come from a table of architectures.

A table is a JSON file::

    {
      "note": "where the numbers come from",
      "space": "autoformer-tiny",
      "model": {"head_dim": null, "relative_position": false},
      "rows": [
        {"arch": {"embed_dim": 192, "depth": 12, "num_heads": [3, ...], "mlp_ratio": [4.0, ...]},
         "accuracy": {"c100": 76.06, "flowers": 66.6}},
        ...
      ]
    }

- ``note`` (optional): where the numbers come from and what to beware of.
- ``space``: the name of a space; every arch must be a member of it.
- ``model`` (optional): options of the family's model that differ from its defaults.
- ``rows``: three or more. ``arch`` is written in any way that the space reads. ``accuracy`` holds numbers by column; a
  row that lacks a column (or has null there) is left out where that column is the target. Other keys are ignored, and
  the same arch may stand in several rows.

The folder of a run is a table, too: its candidates, and the scores that its search gave them as columns.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from nasformer.errors import UserError
from nasformer.models.base import Segment, options_from_json
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.search.journal import read_candidates
from nasformer.space.arch import Arch, Value
from nasformer.utils.files import read_json, read_limited
from nasformer.utils.statistics import kendall, spearman, undefined

MIN_ROWS = 3  # with fewer there is nothing to rank


@dataclass(frozen=True)
class Table:
    """Archs and their accuracies by column, NaN where a row lacks it. `source` is the name of the table in errors."""

    space: Space
    archs: list[Arch]
    accuracy: dict[str, list[float]]
    note: str = ""
    source: str = "the table"

    @property
    def columns(self) -> list[str]:
        return list(self.accuracy)

    def rows_with(self, target: str) -> list[int]:
        """The numbers of the rows that have the target."""
        if target not in self.accuracy:
            raise UserError(f"{self.source} has no column {target!r}; it has: {', '.join(self.columns) or 'none'}")
        rows = [row for row, value in enumerate(self.accuracy[target]) if math.isfinite(value)]
        if len(rows) < MIN_ROWS:
            raise UserError(f"{self.source} has {len(rows)} rows with {target!r}; ranking needs {MIN_ROWS} or more")
        return rows

    def select(self, target: str) -> Table:
        """The table without the rows that lack the target."""
        rows = self.rows_with(target)
        accuracy = {column: [values[row] for row in rows] for column, values in self.accuracy.items()}
        return replace(self, archs=[self.archs[row] for row in rows], accuracy=accuracy)


def read_table(path: str | Path) -> Table:
    """Reads a table file or a run folder (see the top of this module) and checks every row of it."""
    path = Path(path)
    try:
        return _parse(_load_run(path) if path.is_dir() else _load(path), str(path))
    except UserError as error:
        raise UserError(f"table {path}: {error}") from None


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_limited(path))
    except RecursionError:
        raise UserError("is nested too deeply; expected an object with space and rows") from None
    except FileNotFoundError:
        raise UserError("no such file; give a JSON file with archs and accuracies") from None
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror}); give a JSON file with archs and accuracies") from None
    except ValueError as error:  # no JSON, or no text at all
        raise UserError(f"is not valid JSON ({error}); expected an object with space and rows") from None
    return _expect(content, dict, "the content")


def _load_run(folder: Path) -> dict[str, Any]:
    """The candidates of a run as the content of a table."""
    journal = folder / "search" / "journal.jsonl"
    if not journal.exists():
        raise UserError("cannot be read (a folder without a search); give a run folder with one, or a JSON file")
    settings, candidates = read_candidates(journal)
    costs = ("params", "macs", "position_", "latency_ms", "memory_bytes")
    rows = [
        {
            "arch": candidate.arch.to_dict(),
            "accuracy": {k: v for k, v in candidate.scores.items() if not k.startswith(costs)},
        }
        for candidate in candidates
    ]
    space = settings.space or read_json(folder / "config.json").get("space")
    model = options_from_json(settings.model_options)
    return {"note": f"candidates of {folder}", "space": space, "model": model, "rows": rows}


def _parse(content: dict[str, Any], source: str) -> Table:
    space = _space(content)
    rows = _expect(content.get("rows"), list, "rows")
    if len(rows) < MIN_ROWS:
        raise UserError(f"has {len(rows)} rows; ranking needs {MIN_ROWS} or more")
    read = [_row(space, number, row) for number, row in enumerate(rows, start=1)]
    archs = [arch for arch, _ in read]
    _try_model(space, archs[0])
    note = _expect(content.get("note", ""), str, "note")
    return Table(space, archs, _columns([accuracy for _, accuracy in read]), note, source)


def _space(content: Mapping[str, Any]) -> Space:
    name = _expect(content.get("space"), str, "space")
    return get_space(name).with_options(**_expect(content.get("model", {}), dict, "model"))


def _row(space: Space, number: int, row: Any) -> tuple[Arch, dict[str, float]]:
    try:
        row = _expect(row, dict, "the row")
        arch = space.arch(_expect(row.get("arch"), dict, "arch"))
        accuracy = _expect(row.get("accuracy"), dict, "accuracy")
        return arch, {column: _number(column, value) for column, value in accuracy.items()}
    except UserError as error:
        raise UserError(f"row {number}: {error}") from None


def _number(column: str, value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"accuracy {column!r} is {str(value)[:40]!r}, expected a number")
    return float(value)


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    names = dict.fromkeys(column for row in rows for column in row)
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


def _try_model(space: Space, arch: Arch) -> None:
    """Plans one model, so that wrong options are refused at once, with the name of the file."""
    try:
        space.plan(arch)
    except (UserError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"model {dict(space.options)} does not suit {space.name}: {error}") from None


def _expect(value: Any, expected: type, what: str) -> Any:
    """The value; UserError where it is not of the expected type."""
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
    if not isinstance(value, expected):
        shown = "missing" if value is None else json.dumps(value)[:40]
        raise UserError(f"{what} is {shown}, expected {names[expected]}")
    return value


def trivial_counts(space: Space, archs: Sequence[Arch]) -> dict[str, list[float]]:
    """Counts that need no proxy: parameters, MACs, depth, and the total of each number of an arch.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-tiny")
    >>> counts = trivial_counts(space, [space.root.smallest(), space.root.largest()])
    >>> {name: values for name, values in counts.items() if name not in ("params", "macs")}
    {'depth': [12.0, 14.0], 'embed_dim': [192.0, 240.0], 'num_heads': [36.0, 56.0], 'mlp_ratio': [42.0, 56.0]}
    """
    costs = [space.costs(arch) for arch in archs]
    counts = {name: [float(cost[name]) for cost in costs] for name in ("params", "macs")}
    depths = [float(depth_of(space.plan(arch))) for arch in archs]
    if any(depths):
        counts["depth"] = depths
    totals = [number_totals(arch) for arch in archs]
    for name in dict.fromkeys(name for total in totals for name in total):
        # A field named like a count of the plan is left out.
        counts.setdefault(name, [float(total[name]) for total in totals])
    return counts


def depth_of(plan: Sequence[Segment]) -> int:
    """The number of blocks in a plan."""
    return sum("blocks" in segment.name.split(".") for segment in plan)


def number_totals(arch: Arch) -> Counter[str]:
    """The sum of an arch's numbers by name, at any level.

    >>> number_totals(Arch(width=16, heads={"stage1": 2, "stage2": 4}, blocks=[{"conv": {"kernel": 3}}, {"mlp": {}}]))
    Counter({'width': 16, 'heads': 6, 'kernel': 3})
    """
    totals: Counter[str] = Counter()
    for path, number in _numbers(arch):
        totals[_name(path)] += number  # type: ignore[assignment]  # a Counter of floats is one as well
    return totals


def _numbers(value: Value, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """All numbers in an arch, each with the names from the root down to it."""
    if isinstance(value, Arch):
        for name, part in value.items():
            yield from _numbers(part, (*path, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(item, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _name(path: Sequence[str]) -> str:
    """The innermost name without a number at its end: "stage1" says where, "num_heads" says what.

    >>> _name(("num_heads", "stage1")), _name(("stage1", "num_heads")), _name(("heads2",))
    ('num_heads', 'num_heads', 'heads')
    """
    plain = [name for name in path if not re.search(r"\d$", name)]
    return plain[-1] if plain else re.sub(r"_?\d+$", "", path[-1]) or path[-1]


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
    """The interval that holds the middle part of the values; undefined values are left out."""
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
class TauComparison:
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

    overall: TauComparison
    within: TauComparison

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
    """Ranks the archs of a table by each score and compares the order with that of their accuracies.

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
        """Compares a score with the parameter count and with the best count, over all rows and within bands."""
        overall = {name: count.overall for name, count in self.counts.items()}
        within = {name: count.within for name, count in self.counts.items()}
        rivals = {"params": ("params", "params"), "best_count": (_best(overall), _best(within))}
        return {
            name: Versus(
                TauComparison(first, Estimate.of(taus.overall), Estimate.of(taus.overall - overall[first])),
                TauComparison(second, Estimate.of(taus.within), Estimate.of(taus.within - within[second])),
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
