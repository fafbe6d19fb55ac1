"""Patterns that a paper reports of the nets it found: do they show in our winners, and would they without a search?

Each pattern has a strength, a number above 0 where the pattern holds. That alone says little, for a few random nets
have some pattern soon. So it is compared with groups of as many random archs of the same space and budget. What more
than one group in twenty shows as strongly need not come from the search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, linear_regression
from typing import Literal

from nasformer.report.labels import in_a_row
from nasformer.report.stages import BLOCKS, Reading, number_of, pool, shares, values

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
