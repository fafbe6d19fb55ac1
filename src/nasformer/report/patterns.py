"""Patterns in the winners of several searches of one space, by stage, beside random archs of that space and budget.

A paper may report patterns of the nets it found. Each has a strength here, a number above 0 where the pattern holds.
That alone says little, for a few random nets soon have some pattern. So it is compared with groups of as many random
archs: a pattern that more than one group in twenty shows as strongly need not come from the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from random import Random
from statistics import fmean, linear_regression, pstdev
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nasformer.errors import UserError
from nasformer.latency.search import kept_profile
from nasformer.models.base import options_from_json
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.report.architectures import BLOCKS, THIRDS, is_number, share_bar, shares, stage_number, stage_of
from nasformer.report.style import (
    GREY,
    INK,
    PURPLE,
    RED,
    join_words,
    label,
    legend_below,
    lighten,
    new_figure,
    nice_ticks,
    palette,
    plain,
    png,
    style_axes,
)
from nasformer.results.folder import RunFolder
from nasformer.search.journal import JournalSettings
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, sample_feasible
from nasformer.space.mutation import ROLES, genes
from nasformer.space.nodes import Node
from nasformer.utils.files import write_bytes, write_json

DRAWS = 300  # random archs
TRIES = 200  # plain samples for each, before single steps lead into the budget
GROUPS = 1000
RARE = 0.05
RATIO = "qkv_dim / embed_dim"


# Winners of run folders


def read_winners(folders: Sequence[Path]) -> tuple[Space, Budget, list[Arch]]:
    """The winners of searches of one space and budget; others are refused, as are retrainings: they have no journal."""
    if not folders:
        raise UserError("say which searches: nasformer patterns RUN [RUN ...]")
    for number, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:number]]:
            raise UserError(f"{folder} is named twice; name each run once, or its winner counts double")
    results = [RunFolder(folder).read_result() for folder in folders]
    settings = [JournalSettings.load(RunFolder(folder).journal) for folder in folders]
    check_alike(folders, "space", [result.space for result in results])
    check_alike(folders, "budget", [setting.budget for setting in settings])
    check_alike(folders, "model options", [setting.model_options for setting in settings])
    space = get_space(results[0].space, **options_from_json(settings[0].model_options))
    space = kept_profile(space, folders[0])
    return space, Budget(**settings[0].budget), [space.root.validate(result.arch) for result in results]


def check_alike(folders: Sequence[Path], what: str, settings: Sequence[Any]) -> None:
    def in_words(setting: Any) -> str:
        return setting if isinstance(setting, str) else ", ".join(f"{k}={v}" for k, v in setting.items()) or "none"

    for folder, setting in zip(folders, settings, strict=True):
        if setting != settings[0]:
            raise UserError(
                f"{folder} has the {what} {in_words(setting)}, {folders[0]} has {in_words(settings[0])}; "
                "name runs of one space, budget and model"
            )


# Choices by stage: a choice belongs to the stage that its path names (stage1, stage2 ...), wherever in the path. In an
# arch without stages, choices of blocks are sorted into thirds of the depth. All others are of the whole net.

WHOLE = "whole net"
RATIOS = (("qkv_dim", "embed_dim"),)
"""Pairs of choices of one stage whose quotient says more than either."""

ChoicesByStage = dict[str, dict[str, list[Any]]]
"""Stage -> name of a choice (kernel, depth, kind of block ...) -> every value chosen, in the order of the net."""


def choices_by_stage(root: Node, arch: Arch) -> ChoicesByStage:
    """Every choice of an arch, by stage and name.

    Depths are called depth; the option of a OneOf has the name of the field that holds it.

    >>> from nasformer import Choice, OneOf, Repeat, Struct
    >>> block = OneOf(conv=Struct(kernel=Choice(3, 5)), pool=Struct())
    >>> root = Struct(stage1=Struct(width=Choice(8, 16), blocks=Repeat(block, depth=Choice(1, 2))))
    >>> arch = root.validate({"stage1": {"width": 8, "blocks": [{"conv": {"kernel": 5}}, {"pool": {}}]}})
    >>> choices_by_stage(root, arch)
    {'stage1': {'blocks': ['conv', 'pool'], 'width': [8], 'depth': [2], 'kernel': [5]}}
    """
    values = {path: value for role in ROLES for path, value in genes(root, arch, role).items()}
    staged = any(map(stage_of, values))
    choices: ChoicesByStage = {}
    for path, value in values.items():
        stage = stage_of(path) or (WHOLE if staged else _third(arch, path))
        choices.setdefault(stage, {}).setdefault(_choice_name(arch, path), []).append(value)
    for row in choices.values():
        for above, below in RATIOS:
            if row.get(above) and len(row.get(below, [])) == 1:
                row[f"{above} / {below}"] = [value / row[below][0] for value in row[above]]
    return choices


def _third(arch: Arch, path: tuple[Any, ...]) -> str:
    index = next((index for index, part in enumerate(path) if isinstance(part, int)), None)
    if index is None:
        return WHOLE
    return THIRDS[3 * path[index] // len(_value_at(arch, path[:index]))]


def _choice_name(arch: Arch, path: tuple[Any, ...]) -> str:
    """The last name of the path that is not a stage; a stage may itself be the stack of blocks."""
    if isinstance(_value_at(arch, path), tuple):
        return "depth"
    return next((part for part in reversed(path) if isinstance(part, str) and not stage_of((part,))), BLOCKS)


def _value_at(arch: Arch, path: tuple[Any, ...]) -> Any:
    return reduce(lambda value, part: value[part], path, arch)


def pool(choices: Iterable[ChoicesByStage]) -> ChoicesByStage:
    """The choices of several archs together, stages in the order of the net."""
    pooled: ChoicesByStage = {}
    for group in choices:
        for stage, row in group.items():
            for name, values in row.items():
                pooled.setdefault(stage, {}).setdefault(name, []).extend(values)
    others = (*THIRDS, WHOLE)
    order = {stage: others.index(stage) if stage in others else stage_number(stage) - 1000 for stage in pooled}
    return {stage: pooled[stage] for stage in sorted(pooled, key=lambda stage: order[stage])}


def choice_names(choices: ChoicesByStage) -> list[str]:
    """The names of all choices, kinds before numbers."""
    examples = {name: values for row in choices.values() for name, values in row.items()}
    return sorted(examples, key=lambda name: is_number(examples[name][0]))


def values_of(choices: ChoicesByStage, name: str, stage: str | None = None) -> list[Any]:
    """The values of a choice in a stage, or in all of them."""
    stages = choices if stage is None else [stage]
    return [value for stage in stages for value in choices.get(stage, {}).get(name, [])]


def summarize(choices: ChoicesByStage) -> dict[str, dict[str, dict[str, Any]]]:
    """Stage -> name -> the share of each value; of numbers mean and standard deviation as well."""
    return {stage: {name: _summary(values) for name, values in row.items()} for stage, row in choices.items()}


def _summary(values: list[Any]) -> dict[str, Any]:
    summary = {"n": len(values), "shares": {str(value): share for value, share in shares(values).items()}}
    return {**summary, "mean": fmean(values), "std": pstdev(values)} if all(map(is_number, values)) else summary


# Patterns that papers report, and whether the winners show them


@dataclass(frozen=True)
class Pattern:
    """A paper's claim, its strength in a group of archs (None where there is nothing to judge), and the numbers."""

    name: str
    claim: str
    strength: Callable[[ChoicesByStage], float | None]
    numbers: Callable[[ChoicesByStage], str]


@dataclass(frozen=True)
class PatternVerdict:
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


def judge_patterns(
    family: str, winners: Sequence[ChoicesByStage], random: Sequence[ChoicesByStage]
) -> list[PatternVerdict]:
    """A verdict on each pattern that the paper of the family reports; none for other families."""
    rng, chosen, usual = Random("0 groups"), pool(winners), pool(random)
    groups = [pool(rng.choices(random, k=len(winners))) for _ in range(GROUPS if family in PATTERNS else 0)]
    return [judge_pattern(pattern, len(winners), chosen, usual, groups) for pattern in PATTERNS.get(family, ())]


def judge_pattern(
    pattern: Pattern, count: int, chosen: ChoicesByStage, random: ChoicesByStage, groups: Sequence[ChoicesByStage]
) -> PatternVerdict:
    strength, random_strength = pattern.strength(chosen), pattern.strength(random)
    if strength is None:
        sentence = f"{pattern.claim}: no encoders there"
        return PatternVerdict(pattern.name, "no encoders there", None, random_strength, None, False, sentence)
    strengths = [value for value in map(pattern.strength, groups) if value is not None]
    chance = sum(value >= strength for value in strengths) / len(strengths) if strengths else None
    emerged = strength > 0 and chance is not None and chance <= RARE
    verdict: Literal["appears", "does not appear"] = "appears" if strength > 0 else "does not appear"
    sentence = f"{pattern.claim}: {verdict} ({pattern.numbers(chosen)}; random archs: {pattern.numbers(random)})"
    if strength > 0 and chance is not None:
        others = "random archs" if count == 1 else f"random groups of {count}"
        often = f"{100 * chance:.0f} %" if chance >= 0.01 else "fewer than 1 %"
        origin = "so it emerged from the search" if emerged else "so it need not come from the search"
        sentence += f"; {often} of {others} show it as strongly, {origin}"
    return PatternVerdict(pattern.name, verdict, strength, random_strength, chance, emerged, sentence)


def prevails(name: str, claim: str, choice: str, option: str, *stages: str) -> Pattern:
    """The option is the most frequent one in each of the stages.

    Its strength is the least lead over the next option, times the root of their number: ten of ten say more than two of
    two, which a random group with few encoders has soon.
    """

    def lead(choices: ChoicesByStage, stage: str) -> float:
        options = values_of(choices, choice, stage)
        share_of = shares(options)
        return (share_of.pop(option, 0.0) - max(share_of.values(), default=0.0)) * len(options) ** 0.5

    def strength(choices: ChoicesByStage) -> float | None:
        present = [stage for stage in stages if values_of(choices, choice, stage)]
        return min((lead(choices, stage) for stage in present), default=None)

    def numbers(choices: ChoicesByStage) -> str:
        percents = {stage: in_percent(values_of(choices, choice, stage)) for stage in stages}
        return ", ".join(f"{percent} in stage {stage_number(stage)}" for stage, percent in percents.items())

    return Pattern(name, claim, strength, numbers)


def in_percent(options: Sequence[str]) -> str:
    """The shares of options in words, the most frequent first.

    >>> in_percent(["ibn", "convnext", "ibn"])
    'ibn 67 % and convnext 33 %'
    """
    ordered = sorted(shares(options).items(), key=lambda item: -item[1])
    return join_words([f"{option} {100 * share:.0f} %" for option, share in ordered]) if ordered else "none"


def means_by_stage(choices: ChoicesByStage, choice: str) -> dict[int, float]:
    stages = [stage for stage in choices if stage.startswith("stage") and values_of(choices, choice, stage)]
    return {stage_number(stage): fmean(values_of(choices, choice, stage)) for stage in stages}


def kernel_slope(choices: ChoicesByStage) -> float | None:
    """By how much the mean kernel grows from stage to stage, along the line that fits best."""
    means = means_by_stage(choices, "kernel")
    return linear_regression(list(means), list(means.values())).slope if len(means) > 1 else None


def kernel_numbers(choices: ChoicesByStage) -> str:
    means = ", ".join(f"{mean:.1f}" for mean in means_by_stage(choices, "kernel").values())
    return f"means {means}; {kernel_slope(choices) or 0:+.2f} a stage"


def qkv_margin(choices: ChoicesByStage) -> float | None:
    """How far the mean ratio stays below 1, in the stage where it is highest."""
    means = means_by_stage(choices, RATIO)
    return 1 - max(means.values()) if means else None


def qkv_numbers(choices: ChoicesByStage) -> str:
    parts = []
    for number, mean in means_by_stage(choices, RATIO).items():
        ratios = values_of(choices, RATIO, f"stage{number}")
        below = sum(ratio < 1 for ratio in ratios)
        parts.append(f"ratio {mean:.2f} in stage {number}, below 1 in {below} of {len(ratios)} encoders")
    return "; ".join(parts) or "no encoders"


PATTERNS: Mapping[str, tuple[Pattern, ...]] = {
    "esformer": (  # the supplement of Entropic Score
        prevails("early_ibn", "IBN prevails in stages 1 and 2", BLOCKS, "ibn", "stage1", "stage2"),
        prevails("late_convnext", "ConvNeXt prevails in stage 4", BLOCKS, "convnext", "stage4"),
        prevails("ffn_stage3", "Feed-forward halves are IBN in stage 3", "ffn", "ibn", "stage3"),
        prevails("ffn_stage4", "Feed-forward halves are ConvNeXt in stage 4", "ffn", "convnext", "stage4"),
        Pattern("kernels_grow", "Kernels grow with depth", kernel_slope, kernel_numbers),
        Pattern("narrow_qkv", "q, k and v are narrower than the embedding", qkv_margin, qkv_numbers),
    )
}
"""By family: what its paper reports of the nets it found."""


# Winners beside random archs


@dataclass(frozen=True)
class Patterns:
    """The winners beside the random archs.

    Args:
        winners: How many there are.
        draws: How many random archs they are compared with.
        repaired: How many of these were adjusted to fit a narrow budget, and are not quite a fair sample of it.
        chosen: What the winners chose, by stage.
        random: What the random archs chose.
        verdicts: On the patterns that the family's paper reports, if it does.
    """

    space: str
    budget: str
    winners: int
    draws: int
    repaired: int
    chosen: ChoicesByStage
    random: ChoicesByStage
    verdicts: list[PatternVerdict]

    @property
    def together(self) -> ChoicesByStage:
        """The choices of winners and random archs: all that there is to show."""
        return pool([self.chosen, self.random])

    @property
    def title(self) -> str:
        return f"{self.winners} winner{'s' * (self.winners > 1)} of {self.space}"

    def to_dict(self) -> dict[str, Any]:
        """Shares, means and spreads in place of the single choices, ready for JSON."""
        facts = {name: getattr(self, name) for name in ("space", "budget", "winners", "draws", "repaired")}
        tables = {"found": summarize(self.chosen), "random": summarize(self.random)}
        return {**facts, **tables, "verdicts": [asdict(verdict) for verdict in self.verdicts]}


def find_patterns(space: Space, winners: Sequence[Arch], budget: Budget, draws: int = DRAWS) -> Patterns:
    """Compares winners of searches with random archs of the same space and budget.

    >>> from nasformer import get_space
    >>> space = get_space("esformer-s0")
    >>> found = find_patterns(space, [space.presets["edgenext-like-xxs"]], Budget(max_params=2_000_000), draws=20)
    >>> {verdict.pattern: verdict.verdict for verdict in found.verdicts}["kernels_grow"]
    'appears'
    """
    if not winners:
        raise UserError("there are no winners to compare; give the archs of one search or more")
    drawn, repaired = draw(space, budget, draws)
    chosen, random = ([choices_by_stage(space.root, arch) for arch in archs] for archs in (winners, drawn))
    return Patterns(
        space=space.name,
        budget=str(budget),
        winners=len(winners),
        draws=draws,
        repaired=repaired,
        chosen=pool(chosen),
        random=pool(random),
        verdicts=judge_patterns(space.model.family, chosen, random),
    )


def draw(space: Space, budget: Budget, count: int, seed: int = 0) -> tuple[list[Arch], int]:
    """Random archs within the budget, and how many of them needed more than plain sampling."""
    rng, windows, calls = Random(seed), budget.windows(), 0

    def costs(arch: Arch) -> dict[str, float]:
        nonlocal calls
        calls += 1
        return space.costs(arch)

    drawn, repaired = [], 0
    for _ in range(count):
        before = calls
        drawn.append(sample_feasible(space.root, rng, costs, windows, TRIES))
        repaired += calls - before > TRIES
    return drawn, repaired


# Files and table


def write_patterns(patterns: Patterns, folder: Path, runs: Sequence[str]) -> None:
    """Writes patterns.json and patterns.png."""
    write_json(folder / "patterns.json", {"runs": list(runs), **patterns.to_dict()})
    write_bytes(folder / "patterns.png", png(patterns_figure(patterns)))


def rows(patterns: Patterns) -> Iterator[tuple[str, list[str]]]:
    """A row for each option of a kind, and one for each number."""
    together = patterns.together
    for name in choice_names(together):
        values = values_of(together, name)
        if all(map(is_number, values)):
            yield name, [cell(patterns, name, stage) for stage in together]
        else:
            for option in shares(values):
                yield f"{name}: {option}", [cell(patterns, name, stage, option) for stage in together]


def cell(patterns: Patterns, name: str, stage: str, option: Any = None) -> str:
    """The share of an option, or the mean of a number: of the winners, in brackets of the random archs."""

    def shown(values: list[Any]) -> str:
        if not values:
            return "–"
        return f"{fmean(values):.3g}" if option is None else f"{100 * shares(values).get(option, 0.0):.0f} %"

    winners, random = (values_of(choices, name, stage) for choices in (patterns.chosen, patterns.random))
    return f"{shown(winners)} ({shown(random)})" if winners or random else ""


# The figure of the patterns: a panel for each choice that several stages make, winners beside random archs.

FIRST = ("blocks", "kernel", "ffn", "qkv_dim / embed_dim")
"""The choices that papers speak of come first."""
LABELS = {"blocks": "blocks", "ffn": "feed-forward halves", "qkv_dim / embed_dim": "q-k-v width / embedding"}
SIDE = 0.19  # from the middle of a stage to the middle of a bar


def patterns_figure(patterns: Patterns) -> Figure:
    """Shares of kinds as stacked bars, numbers as means with their standard deviation; stages from left to right."""
    together = patterns.together
    stages, names = [stage for stage in together if stage != WHOLE], plotted_names(together)
    rows = 1 if len(names) < 4 else 2
    columns = max(1, -(-len(names) // rows))
    figure = new_figure(1.2 + 3.6 * columns, 1.2 + 3.1 * rows)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    title = f"{patterns.title} beside {patterns.draws} random archs, budget: {patterns.budget}"
    figure.suptitle(plain(title), color=INK, fontsize=12)
    panels = figure.subplots(rows, columns, squeeze=False)
    kinds = [kind for name in names for kind in shares(values_of(together, name)) if not is_number(kind)]
    colours = palette(list(dict.fromkeys(map(str, kinds))))
    for axes, name in zip(panels.flat, names, strict=False):
        style_axes(axes, y=LABELS.get(name, label(name)))
        axes.set_xticks(range(len(stages)), [stage.replace("stage", "stage ") for stage in stages])
        axes.set_xlim(-0.6, len(stages) - 0.4)
        axes.grid(False, axis="x")
        if is_number(values_of(together, name)[0]):
            draw_means(axes, patterns, name, stages)
        else:
            draw_shares(axes, patterns, name, stages, colours)
    for spare in panels.flat[len(names) :]:
        spare.set_visible(False)
    legend_below(figure, panels.flat)
    return figure


def plotted_names(together: ChoicesByStage) -> list[str]:
    """The choices that two stages or more make; one alone shows no pattern."""

    def stages(name: str) -> int:
        return sum(stage != WHOLE and bool(values_of(together, name, stage)) for stage in together)

    several = [name for name in choice_names(together) if stages(name) > 1]
    return sorted(several, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def draw_shares(axes: Axes, patterns: Patterns, name: str, stages: list[str], colours: dict[str, str]) -> None:
    """A stacked bar for the winners, their number above it, and a pale one for the random archs."""
    note: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 8, "color": GREY}
    softer = {kind: lighten(colour) for kind, colour in colours.items()}
    for index, stage in enumerate(stages):
        winners, random = (values_of(choices, name, stage) for choices in (patterns.chosen, patterns.random))
        share_bar(axes, index - SIDE, winners, colours, 0.35, "white")
        share_bar(axes, index + SIDE, random, softer, 0.35, INK)
        if winners:
            axes.annotate(f"{len(winners)}", (index - SIDE, 1), (0, 2), **note)
        else:
            axes.annotate("none", (index, 0), (0, 4), **note)
    for kind in shares(values_of(patterns.together, name)):
        axes.bar([0], [0], color=colours[str(kind)], label=kind)
    axes.bar([0], [0], color=GREY, label="winners, how many above")
    axes.bar([0], [0], color=lighten(GREY), label="random archs")
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])


def draw_means(axes: Axes, patterns: Patterns, name: str, stages: list[str]) -> None:
    """Means with standard deviations, of the winners and of the random archs."""
    groups = (patterns.chosen, "o", RED, "winners"), (patterns.random, "D", PURPLE, "random archs")
    for side, (choices, marker, colour, words) in zip((-SIDE / 2, SIDE / 2), groups, strict=True):
        columns = [(index, values_of(choices, name, stage)) for index, stage in enumerate(stages)]
        points = [(index + side, fmean(values), pstdev(values)) for index, values in columns if values]
        if points:
            x, mean, spread = zip(*points, strict=True)
            text = f"{words}: mean, standard deviation"
            style: dict[str, Any] = {"color": colour, "ms": 6, "capsize": 3, "elinewidth": 1.4, "zorder": 3}
            axes.errorbar(x, mean, spread, fmt=marker, label=text, **style)
            axes.plot(x, mean, color=colour, lw=1, alpha=0.5, zorder=2)
    if "/" in name:
        axes.axhline(1, color=GREY, lw=1, ls=(0, (4, 3)), zorder=1)
    axes.yaxis.set_major_locator(nice_ticks(5))
