"""Printing of a ranking: a table of all scores, and one sentence for each proxy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nasformer.ranking.rank import Comparison, RankedScore, Ranking, Versus
from nasformer.ranking.statistics import Estimate

COLUMNS = ("tau", "tau in size bands", "rho", "rho given size", "s a net")


def print_ranking(ranking: Ranking, console: Console | None = None) -> None:
    """Proxies first, trivial counts below them, the best tau of each column in bold; then the sentences."""
    console = console or Console()
    console.print(ranking_table(ranking))
    for name, score in ranking.proxies.items():
        console.print(sentence(name, score), markup=False, highlight=False, soft_wrap=True)


def ranking_table(ranking: Ranking) -> Table:
    groups = [group for group in (ranking.proxies, ranking.counts) if group]
    scores = [score for group in groups for score in group.values()]
    best = [_highest(score.kendall for score in scores), _highest(score.within for score in scores)]
    title = f"{ranking.n} archs of {ranking.space} ranked by {ranking.target}"
    caption = f"Kendall's tau, all rows and within {ranking.bands} size bands; Spearman's rho; 95 % intervals"
    table = Table(title=escape(title), caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("score", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=column in COLUMNS[:2])
    for group in groups:
        for name, score in group.items():
            table.add_row(escape(name), *_cells(score, best))
        table.add_section()
    return table


def _cells(score: RankedScore, best: Sequence[float | None]) -> list[str]:
    taus = [_bold(estimate, top) for estimate, top in zip((score.kendall, score.within), best, strict=True)]
    seconds = "–" if score.seconds_per_net is None else f"{score.seconds_per_net:.3g}"
    return [*taus, _number(score.spearman.value), _number(score.partial_spearman), seconds]


def _bold(estimate: Estimate, top: float | None) -> str:
    text = escape(format_estimate(estimate))
    return f"[bold]{text}[/bold]" if estimate.value is not None and estimate.value == top else text


def _highest(estimates: Iterable[Estimate]) -> float | None:
    return max((estimate.value for estimate in estimates if estimate.value is not None), default=None)


def format_estimate(estimate: Estimate) -> str:
    """The value and its interval.

    >>> format_estimate(Estimate(0.634, (0.512, 0.718))), format_estimate(Estimate(None, None))
    ('0.63 [0.51, 0.72]', '–')
    """
    if estimate.value is None or estimate.interval is None:
        return _number(estimate.value)
    low, high = estimate.interval
    return f"{_number(estimate.value)} [{_number(low)}, {_number(high)}]"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def sentence(name: str, score: RankedScore) -> str:
    """The numbers of a proxy in words, such as "dss: 0.63 [0.51, 0.72] over all rows; ...; no better than params"."""
    if score.reason is not None:
        return f"{name}: no ranking, {score.reason}"
    parts = [f"{format_estimate(score.kendall)} over all rows", f"within size bands {format_estimate(score.within)}"]
    parts.append(_against(score.beats["params"]))
    best = score.beats["best_count"]
    if {best.overall.rival, best.within.rival} != {"params"}:
        parts.append(_against(best))
    if score.missing:
        parts.append(f"without {score.missing} rows that have no finite score")
    return f"{name}: {'; '.join(parts)}"


def _against(versus: Versus) -> str:
    """One verdict where both comparisons agree on the same rival, else both."""
    first, second = versus.overall, versus.within
    text = f"{_verdict(first)} (difference {format_estimate(first.difference)}"
    if second.difference.value is None:
        return f"{text})"
    if (first.rival, first.better) == (second.rival, second.better):
        return f"{text}, within bands {format_estimate(second.difference)})"
    return f"{text}), within bands {_verdict(second)} (difference {format_estimate(second.difference)})"


def _verdict(comparison: Comparison) -> str:
    if comparison.difference.above_zero and not comparison.better:
        return f"above {comparison.rival} but no better than chance"
    return f"{'better' if comparison.better else 'no better'} than {comparison.rival}"
