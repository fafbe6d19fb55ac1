"""Patterns that a paper reports of the nets it found: do they show in our winners, and would they without a search?

Each pattern has a strength, a number above 0 where the pattern holds. That alone says little, for a few random nets
have some pattern soon. So it is compared with groups of as many random archs of the same space and budget. What more
than one group in twenty shows as strongly need not come from the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean, linear_regression
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nasformer.errors import UserError
from nasformer.families.space import Space
from nasformer.report.anatomy import BLOCKS, Reading, is_number, number_of, pool, read, shares, table, values
from nasformer.report.labels import in_a_row
from nasformer.search.budget import Budget
from nasformer.space.arch import Arch
from nasformer.space.feasible import sample_feasible

GROUPS = 1000
RARE = 0.05
RATIO = "qkv_dim / embed_dim"


@dataclass(frozen=True)
class Pattern:
    """What a paper says, its strength in a group of archs (None where there is nothing to judge), and the figures."""

    name: str
    claim: str
    strength: Callable[[Reading], float | None]
    figures: Callable[[Reading], str]


@dataclass(frozen=True)
class Verdict:
    """A pattern in the winners.

    Args:
        chance: The share of random groups that show the pattern at least as strongly.
        emerged: The pattern appears, and chance is small.
    """

    pattern: str
    verdict: Literal["appears", "does not appear", "no encoders there"]
    strength: float | None
    random_strength: float | None
    chance: float | None
    emerged: bool
    sentence: str


def judge(family: str, winners: Sequence[Reading], random: Sequence[Reading], seed: int = 0) -> list[Verdict]:
    """A verdict on each pattern that is known of the family; of other families none is."""
    rng, found, everyone = Random(f"{seed} groups"), pool(winners), pool(random)
    groups = [pool(rng.choices(random, k=len(winners))) for _ in range(GROUPS if family in PATTERNS else 0)]
    return [_judge(pattern, len(winners), found, everyone, groups) for pattern in PATTERNS.get(family, ())]


def _judge(pattern: Pattern, count: int, found: Reading, everyone: Reading, groups: Sequence[Reading]) -> Verdict:
    strength, usual = pattern.strength(found), pattern.strength(everyone)
    if strength is None:
        sentence = f"{pattern.claim}: no encoders there"
        return Verdict(pattern.name, "no encoders there", None, usual, None, False, sentence)
    known = [one for one in map(pattern.strength, groups) if one is not None]
    chance = sum(one >= strength for one in known) / len(known) if known else None
    appears = strength > 0
    emerged = appears and chance is not None and chance <= RARE
    verdict: Literal["appears", "does not appear"] = "appears" if appears else "does not appear"
    figures = f"{pattern.figures(found)}; random archs: {pattern.figures(everyone)}"
    sentence = f"{pattern.claim}: {verdict} ({figures}){_compared(chance, count, emerged) if appears else ''}"
    return Verdict(pattern.name, verdict, strength, usual, chance, emerged, sentence)


def _compared(chance: float | None, count: int, emerged: bool) -> str:
    if chance is None:
        return ""
    groups = "random archs" if count == 1 else f"random groups of {count}"
    often = f"{100 * chance:.0f} %" if chance >= 0.01 else "fewer than 1 %"
    told = "so it emerged from the search" if emerged else "so it need not come from the search"
    return f"; {often} of {groups} show it as strongly, {told}"


def prevails(name: str, claim: str, field: str, pick: str, *stages: str) -> Pattern:
    """The pick is the most frequent one in each of the stages.

    Its strength is the least lead over the next pick, times the root of their number: ten of ten say more than two of
    two, which a random group with few encoders has soon.
    """

    def lead(reading: Reading, stage: str) -> float:
        picks = values(reading, stage, field)
        found = shares(picks)
        return (found.pop(pick, 0.0) - max(found.values(), default=0.0)) * len(picks) ** 0.5

    def strength(reading: Reading) -> float | None:
        there = [stage for stage in stages if values(reading, stage, field)]
        return min((lead(reading, stage) for stage in there), default=None)

    def figures(reading: Reading) -> str:
        return ", ".join(f"{in_percent(values(reading, stage, field))} in {spaced(stage)}" for stage in stages)

    return Pattern(name, claim, strength, figures)


def in_percent(picks: Sequence[str]) -> str:
    """The most frequent first.

    >>> in_percent(["ibn", "convnext", "ibn"])
    'ibn 67 % and convnext 33 %'
    """
    ordered = sorted(shares(picks).items(), key=lambda item: -item[1])
    return in_a_row([f"{pick} {100 * share:.0f} %" for pick, share in ordered]) if ordered else "none"


def spaced(stage: str) -> str:
    return f"stage {number_of(stage)}"


def stages_with(reading: Reading, field: str) -> list[str]:
    return [stage for stage in reading if stage.startswith("stage") and values(reading, stage, field)]


def kernel_slope(reading: Reading) -> float | None:
    """By how much the mean kernel grows from stage to stage, along the line that fits best."""
    stages = stages_with(reading, "kernel")
    if len(stages) < 2:
        return None
    means = [fmean(values(reading, stage, "kernel")) for stage in stages]
    return linear_regression([number_of(stage) for stage in stages], means).slope


def kernel_figures(reading: Reading) -> str:
    means = [f"{fmean(values(reading, stage, 'kernel')):.1f}" for stage in stages_with(reading, "kernel")]
    return f"means {', '.join(means)}; {kernel_slope(reading) or 0:+.2f} a stage"


def qkv_margin(reading: Reading) -> float | None:
    """How far the mean ratio stays below 1, in the stage where it is highest."""
    ratios = [fmean(values(reading, stage, RATIO)) for stage in stages_with(reading, RATIO)]
    return 1 - max(ratios) if ratios else None


def qkv_figures(reading: Reading) -> str:
    parts = []
    for stage in stages_with(reading, RATIO):
        ratios = values(reading, stage, RATIO)
        below = sum(ratio < 1 for ratio in ratios)
        parts.append(f"ratio {fmean(ratios):.2f} in {spaced(stage)}, below 1 in {below} of {len(ratios)} encoders")
    return "; ".join(parts) or "no encoders"


PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "esformer": (  # the supplement of Entropic Score
        prevails("early_ibn", "IBN prevails in stages 1 and 2", BLOCKS, "ibn", "stage1", "stage2"),
        prevails("late_convnext", "ConvNeXt prevails in stage 4", BLOCKS, "convnext", "stage4"),
        prevails("ffn_stage3", "Feed-forward halves are IBN in stage 3", "ffn", "ibn", "stage3"),
        prevails("ffn_stage4", "Feed-forward halves are ConvNeXt in stage 4", "ffn", "convnext", "stage4"),
        Pattern("kernels_grow", "Kernels grow with depth", kernel_slope, kernel_figures),
        Pattern("narrow_qkv", "q, k and v are narrower than the embedding", qkv_margin, qkv_figures),
    )
}
"""By family: what its paper reports of the nets it found."""


# ----------------------------------------------------------------------------------------------------------------------
# What emerged: the winners of several searches of one space, tabulated by stage beside random archs of that space.
# ----------------------------------------------------------------------------------------------------------------------

DRAWS = 300
TRIES = 200  # plain samples for each draw, before single steps lead into the budget


@dataclass(frozen=True)
class Patterns:
    """The winners beside the random archs.

    Args:
        winners: How many there are.
        draws: How many random archs they are compared with.
        repaired: How many of these were led into a narrow budget, and are not quite a fair sample of it.
        found: What the winners chose, by stage.
        random: What the random archs chose.
        verdicts: On the patterns that the family's paper reports, if it does.
    """

    space: str
    budget: str
    winners: int
    draws: int
    repaired: int
    found: Reading
    random: Reading
    verdicts: list[Verdict]

    @property
    def together(self) -> Reading:
        """All that was chosen by anyone: what there is to show."""
        return pool([self.found, self.random])

    def to_dict(self) -> dict[str, Any]:
        """Shares, means and spreads in place of the single choices, ready for JSON."""
        facts = {name: getattr(self, name) for name in ("space", "budget", "winners", "draws", "repaired")}
        tables = {"found": table(self.found), "random": table(self.random)}
        return {**facts, **tables, "verdicts": [asdict(verdict) for verdict in self.verdicts]}


def find_patterns(space: Space, winners: Sequence[Arch], budget: Budget, draws: int = DRAWS, seed: int = 0) -> Patterns:
    """Compares winners of searches with random archs of the same space and budget.

    >>> from nasformer import get_space
    >>> space = get_space("esformer-s0")
    >>> found = find_patterns(space, [space.presets["edgenext-like-xxs"]], Budget(max_params=2_000_000), draws=20)
    >>> {verdict.pattern: verdict.verdict for verdict in found.verdicts}["kernels_grow"]
    'appears'
    """
    if not winners:
        raise UserError("there are no winners to compare; give the archs of one search or more")
    drawn, repaired = draw(space, budget, draws, seed)
    found, random = ([read(space.root, arch) for arch in archs] for archs in (winners, drawn))
    return Patterns(
        space=space.name,
        budget=str(budget),
        winners=len(winners),
        draws=draws,
        repaired=repaired,
        found=pool(found),
        random=pool(random),
        verdicts=judge(space.model.family, found, random, seed),
    )


def draw(space: Space, budget: Budget, count: int, seed: int) -> tuple[list[Arch], int]:
    """Random archs within the budget, and how many of them needed more than plain sampling."""
    rng, windows, asked = Random(seed), budget.windows(), 0

    def costs(arch: Arch) -> dict[str, float]:
        nonlocal asked
        asked += 1
        return space.costs(arch)

    drawn, repaired = [], 0
    for _ in range(count):
        before = asked
        drawn.append(sample_feasible(space.root, rng, costs, windows, TRIES))
        repaired += asked - before > TRIES
    return drawn, repaired


# ----------------------------------------------------------------------------------------------------------------------
# Patterns in the terminal: a table by stage, winners beside random archs, and one sentence for each verdict.
# ----------------------------------------------------------------------------------------------------------------------


def print_patterns(patterns: Patterns, console: Console | None = None) -> None:
    console = console or Console()
    console.print(patterns_table(patterns))
    told = [verdict.sentence for verdict in patterns.verdicts]
    if patterns.repaired:
        told.append(
            f"the budget is narrow: {patterns.repaired} of {patterns.draws} random archs were led into it step by "
            "step, so they are not quite a fair sample"
        )
    for sentence in told:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def patterns_table(patterns: Patterns) -> Table:
    count = f"{patterns.winners} winner{'s' * (patterns.winners > 1)}"
    title = f"{count} of {patterns.space}, budget: {patterns.budget}"
    caption = f"shares and means; in brackets those of {patterns.draws} random archs"
    table = Table(title=escape(title), caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for stage in patterns.together:
        table.add_column(stage, justify="right", no_wrap=True)
    for label, cells in rows(patterns):
        table.add_row(escape(label), *cells)
    return table


def names(reading: Reading) -> list[str]:
    """What is decided in any stage, kinds before numbers."""
    known = {name: found for row in reading.values() for name, found in row.items()}
    return sorted(known, key=lambda name: is_number(known[name][0]))


def rows(patterns: Patterns) -> Iterator[tuple[str, list[str]]]:
    """A row for each option of a kind, and one for each number."""
    both, together = (patterns.found, patterns.random), patterns.together
    for name in names(together):
        known = [value for stage in together for value in values(together, stage, name)]
        if all(map(is_number, known)):
            yield name, [_cell(name, stage, both, None) for stage in together]
            continue
        for pick in shares(known):
            yield f"{name}: {pick}", [_cell(name, stage, both, pick) for stage in together]


def _cell(name: str, stage: str, both: tuple[Reading, Reading], pick: Any) -> str:
    if not any(values(reading, stage, name) for reading in both):
        return ""
    ours, theirs = (_figure(values(reading, stage, name), pick) for reading in both)
    return f"{ours} ({theirs})"


def _figure(found: list[Any], pick: Any) -> str:
    if not found:
        return "–"
    return f"{fmean(found):.3g}" if pick is None else f"{100 * shares(found).get(pick, 0.0):.0f} %"
