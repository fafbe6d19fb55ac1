"""A ranking on the terminal, and its figure: every tau with its interval, and the scores against the accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, NullFormatter
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from nasformer.proxies.ranking import (
    Estimate,
    Floats,
    RankedScore,
    Ranking,
    Table,
    TauComparison,
    Versus,
    trivial_counts,
)
from nasformer.report.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    ORANGE,
    legend_below,
    new_figure,
    nice_ticks,
    plain,
    png,
    style_axes,
    style_colorbar,
)
from nasformer.utils.files import write_bytes
from nasformer.utils.units import format_quantity

Scores = Mapping[str, Sequence[float] | Floats]
PANELS = 6  # scatter plots at most, those of the highest tau
WIDE = 100  # a score that spans more than this factor is drawn on a logarithmic axis


def plot_ranking(ranking: Ranking, table: Table, scores: Scores, target: str, path: str | Path) -> None:
    """Writes the figure as PNG. Table, scores and target are those that `rank` was given."""
    write_bytes(Path(path), png(ranking_figure(ranking, table, scores, target)))


def ranking_figure(ranking: Ranking, table: Table, scores: Scores, target: str) -> Figure:
    shown = sorted(scores, key=lambda name: _order(ranking.proxies[name]))[:PANELS]
    rows, bars = -(-len(shown) // 2), len(ranking.proxies) + len(ranking.counts)
    figure = new_figure(14 if shown else 7, max(2.1 + 0.34 * bars, 1.4 + 2.3 * rows, 4.0))
    figure.suptitle(plain(f"{ranking.n} archs of {ranking.space}, ranked by {target}"), color=INK, fontsize=12)
    left, *right = figure.subfigures(1, 2 if shown else 1, squeeze=False)[0]
    _taus(left, ranking)
    if right:
        _scatters(right[0], ranking, table, {name: scores[name] for name in shown}, rows)
    return figure


def _order(score: RankedScore) -> float:
    """Sort key: the highest tau first, what has none last."""
    return math.inf if score.kendall.value is None else -score.kendall.value


def _taus(figure: SubFigure, ranking: Ranking) -> None:
    axes = figure.subplots()
    lines = [*_sorted(ranking.proxies), *_sorted(ranking.counts)]
    for y, (_, score) in enumerate(lines):
        _whisker(axes, y - 0.15, score.kendall, BLUE, "o", "over all rows")
        _whisker(axes, y + 0.15, score.within, ORANGE, "D", f"within {ranking.bands} size bands")
        if score.kendall.value is None:
            axes.annotate("not defined", (0, y), (6, 0), textcoords="offset points", va="center", color=GREY)
    size = ranking.counts["params"]
    for estimate, colour, label in ((size.kendall, BLUE, "params"), (size.within, ORANGE, "params within bands")):
        if estimate.value is not None:
            axes.axvline(estimate.value, color=colour, lw=1.2, ls=(0, (5, 3)), alpha=0.8, zorder=2, label=label)
    axes.axvline(0, color=GREY, lw=1, zorder=1)
    style_axes(axes, "Kendall's tau with its 95 % interval")
    axes.grid(False, axis="y")
    axes.axhspan(len(ranking.proxies) - 0.5, len(lines) - 0.5, color=FAINT, alpha=0.45, lw=0, zorder=0)
    corner: dict[str, Any] = {
        "xycoords": ("axes fraction", "data"),
        "textcoords": "offset points",
        "ha": "right",
        "va": "bottom",
    }
    axes.annotate("trivial counts", (1, len(lines) - 0.5), (-4, 4), color=GREY, fontsize=9, **corner)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), [plain(name, 30) for name, _ in lines])
    axes.tick_params(axis="y", labelsize=10, labelcolor=INK)
    legend_below(figure, [axes])


def _sorted(scores: Mapping[str, RankedScore]) -> list[tuple[str, RankedScore]]:
    return sorted(scores.items(), key=lambda item: _order(item[1]))


def _whisker(axes: Axes, y: float, estimate: Estimate, colour: str, marker: str, label: str) -> None:
    if estimate.value is None:
        return
    if estimate.interval is not None:
        axes.plot(estimate.interval, [y, y], color=colour, lw=2, alpha=0.55, solid_capstyle="round", zorder=3)
    axes.scatter(
        [estimate.value], [y], s=36, marker=marker, color=colour, edgecolors="white", lw=0.7, zorder=4, label=label
    )


def _scatters(figure: SubFigure, ranking: Ranking, table: Table, scores: Scores, rows: int) -> None:
    accuracy = np.asarray(table.accuracy[ranking.target])
    params = np.asarray(trivial_counts(table.space, table.archs)["params"])
    columns = min(2, len(scores))
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for panel, (name, values) in zip(panels.flat, scores.items(), strict=False):
        dots = _scatter(panel, np.asarray(values, dtype=float), accuracy, params)
        style_axes(panel, _with_tau(name, ranking), ranking.target if panel.get_subplotspec().is_first_col() else "")
    for spare in panels.flat[len(scores) :]:
        spare.set_visible(False)
    bar = figure.colorbar(dots, ax=panels, location="bottom", aspect=45, pad=0.02, shrink=0.8)
    bar.locator = nice_ticks(9)
    bar.formatter = FuncFormatter(lambda value, _: format_quantity(value))
    style_colorbar(bar, "parameters")


def _with_tau(name: str, ranking: Ranking) -> str:
    tau = ranking.proxies[name].kendall.value
    return name if tau is None else f"{name} (tau {tau:.2f})"


def _tick(value: float, _: int) -> str:
    """Label of a tick: with a unit such as M, or by powers of ten for very small and very large numbers."""
    return format_quantity(value, 4) if 1e-2 <= abs(value) < 1e12 else f"{value:.3g}"


def _scatter(axes: Axes, score: np.ndarray, accuracy: np.ndarray, params: np.ndarray) -> Any:
    """One dot for each row with a score; all panels share the range of colours."""
    finite = np.isfinite(score) & np.isfinite(accuracy)
    values = score[finite]
    if len(values) and values.min() > 0 and values.max() > WIDE * values.min():
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(nice_ticks(5))
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
    axes.tick_params(which="minor", length=0)
    colours = {"c": params[finite], "cmap": "viridis_r", "vmin": params.min(), "vmax": params.max()}
    return axes.scatter(values, accuracy[finite], s=16, alpha=0.8, edgecolors="white", linewidths=0.25, **colours)


# Printing of a ranking: a table of all scores, and one sentence for each proxy.

COLUMNS = ("tau", "tau in size bands", "rho", "rho given size", "s a net")


def print_ranking(ranking: Ranking, console: Console | None = None) -> None:
    """Proxies first, trivial counts below them, the best tau of each column in bold; then the sentences."""
    console = console or Console()
    console.print(ranking_table(ranking))
    for name, score in ranking.proxies.items():
        console.print(sentence(name, score), markup=False, highlight=False, soft_wrap=True)


def ranking_table(ranking: Ranking) -> RichTable:
    groups = [group for group in (ranking.proxies, ranking.counts) if group]
    scores = [score for group in groups for score in group.values()]
    best = [_highest(score.kendall for score in scores), _highest(score.within for score in scores)]
    title = f"{ranking.n} archs of {ranking.space} ranked by {ranking.target}"
    caption = f"Kendall's tau, all rows and within {ranking.bands} size bands; Spearman's rho; 95 % intervals"
    table = RichTable(title=escape(title), caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
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


def _verdict(comparison: TauComparison) -> str:
    if comparison.difference.above_zero and not comparison.better:
        return f"above {comparison.rival} but no better than chance"
    return f"{'better' if comparison.better else 'no better'} than {comparison.rival}"
