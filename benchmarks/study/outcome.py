"""What came out of a study: means with their spread, differences paired over seeds, a table, a figure, evidence.

A study measures *figures* of every *variant* with every seed. Figures are shares, shown in percent, unless the study
calls them plain.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nasformer.results.verdict import Evidence, Gain
from nasformer.utils.schema import from_json, read_yaml

Figures = dict[str, float]
Cells = dict[str, dict[int, Figures]]
"""The figures of each variant, seed by seed."""


@dataclass(frozen=True)
class Study:
    """The contents of a YAML file.

    Args:
        about: What it asks, in a sentence.
        data: The images: a file in the folder of `--data`, or a name that nasformer knows. A variant may name others.
        trainings: How many trainings a cell does side by side, where `--jobs` allows so many: {trainings} in its steps.
        gpu_minutes: What it takes on one H200, about; 0 for a study that needs no GPU.
        steps: Commands of every variant and seed, in turn.
        figures: What is measured: a file in the folder of the seed and the keys in its JSON; the mean of all matches.
        words: What is filled into the variants.
        variants: What is filled into steps, figures and evidence, by the name of the variant.
        plain: Figures that are no shares, such as a correlation.
        optional: Figures that a run may lack.
        keep: JSON files in the folder of the seed that later steps and the figures need. Once all are there, another
            machine can go on by them and by the other JSON files of that folder; until then it would start anew.
        compare: Pairs of figures of one variant, the second of which is the rival.
        rival: The variant that the others are compared with.
        evidence: Lines of the leading table of docs/results.md, for each variant: the facts of an `Evidence`;
            `figures` names the searched net's and those of its random and hand-made rivals; `minutes` lists what a
            user would spend: numbers of steps, or places of seconds.
    """

    refuse_unknown: ClassVar[bool] = True

    about: str
    seeds: int
    steps: list[str]
    figures: dict[str, str]
    data: str = ""
    trainings: int = 1
    gpu_minutes: float = 0.0
    words: dict[str, str] = field(default_factory=dict)
    variants: dict[str, dict[str, str]] = field(default_factory=lambda: {"": {}})
    plain: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)
    compare: list[list[str]] = field(default_factory=list)
    rival: str | None = None
    evidence: list[dict[str, Any]] = field(default_factory=list)

    def words_of(self, variant: str) -> dict[str, str]:
        """What is filled in for a variant."""
        own = {name: text.format(**self.words) for name, text in self.variants[variant].items()}
        return {**self.words, **own, "variant": variant}

    def scale(self, figure: str) -> float:
        return 1.0 if figure in self.plain else 100.0

    def shown(self, figure: str, value: float) -> str:
        return f"{value:.2f}" if figure in self.plain else f"{value:.1f}"


def read_study(path: Path) -> Study:
    """A study from a YAML file; `base` names another one, of which it changes some keys and some words."""
    content = read_yaml(path)
    base = read_yaml(path.with_name(content.pop("base"))) if "base" in content else {}
    words = {**base.get("words", {}), **content.get("words", {})}
    return from_json(Study, {**base, **content, "words": words}, path, remedy="mend the study")


@dataclass(frozen=True)
class Difference:
    """One figure above another, paired over seeds; p is that of a two-sided t-test, None below two seeds."""

    name: str
    figure: str
    mean: float
    std: float
    seeds: int
    p: float | None


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def differences(study: Study, cells: Cells) -> Iterator[Difference]:
    """All that the study compares: figures of a variant, then variants with their rival."""
    for variant, seeds in cells.items():
        for figure, other in study.compare:
            pairs = [(row[figure], row[other]) for row in seeds.values() if figure in row and other in row]
            yield from difference(study, f"{variant + ': ' if variant else ''}{figure} - {other}", figure, pairs)
    if study.rival in cells:
        for variant in (name for name in cells if name != study.rival):
            both = sorted(cells[variant].keys() & cells[study.rival].keys())
            for figure in study.figures:
                rows = [(cells[variant][seed], cells[study.rival][seed]) for seed in both]
                pairs = [(one[figure], other[figure]) for one, other in rows if figure in one and figure in other]
                yield from difference(study, f"{variant} - {study.rival}: {figure}", figure, pairs)


def difference(study: Study, name: str, figure: str, pairs: Sequence[tuple[float, float]]) -> Iterator[Difference]:
    if pairs:
        values = [study.scale(figure) * (one - other) for one, other in pairs]
        yield Difference(name, figure, *spread(values), len(values), p_value(values))


def p_value(values: Sequence[float]) -> float | None:
    """How likely means so far from 0 are where there is no difference; 0 where all values are one and the same.

    >>> round(p_value([5.0, 6.0, 7.0]), 4), p_value([1.0])
    (0.0091, None)
    """
    from scipy.stats import ttest_1samp

    if len(values) < 2:
        return None
    if len(set(values)) == 1:
        return 0.0 if values[0] else 1.0
    return float(ttest_1samp(values, 0.0).pvalue)


def summary(study: Study, cells: Cells) -> dict[str, Any]:
    """Mean, standard deviation and number of seeds of each figure, and the differences."""
    rows: dict[str, Any] = {}
    for variant, seeds in cells.items():
        values = {name: [row[name] for row in seeds.values() if name in row] for name in study.figures}
        means = {name: (*spread(found), len(found)) for name, found in values.items() if found}
        rows[variant] = {name: dict(zip(("mean", "std", "seeds"), mean, strict=True)) for name, mean in means.items()}
    return {"rows": rows, "differences": [asdict(item) for item in differences(study, cells)]}


def evidence(study: Study, cells: Cells, minutes: dict[str, float], record: str) -> Iterator[Evidence]:
    """A line of the leading table for each variant and entry; of several hand-made nets the best counts."""
    for variant, seeds in cells.items():
        for entry in study.evidence:
            facts = filled(entry, study.words_of(variant))
            searched, random, handmade = facts.pop("figures", ("searched", "random", "handmade"))
            if isinstance(handmade, list):
                best = max(range(len(handmade)), key=lambda place: mean_of(seeds, handmade[place]))
                handmade, facts["handmade"] = handmade[best], facts["handmade"][best]
            facts |= {"record": record, "minutes": minutes.get(variant) if facts.pop("minutes", None) else None}
            facts |= {name: int(facts[name]) for name in ("images", "img_size")}
            over = [paired_gain(seeds, searched, rival) for rival in (random, handmade)]
            if any(over):
                yield Evidence(**facts, over_random=over[0], over_handmade=over[1])


def filled(entry: Any, words: dict[str, str]) -> Any:
    """The entry with the words in all of its texts, but for the places of minutes."""
    if isinstance(entry, dict):
        return {name: value if name == "minutes" else filled(value, words) for name, value in entry.items()}
    if isinstance(entry, list):
        return [filled(item, words) for item in entry]
    return entry.format(**words) if isinstance(entry, str) else entry


def mean_of(seeds: dict[int, Figures], figure: str) -> float:
    return statistics.fmean(row.get(figure, float("-inf")) for row in seeds.values())


def paired_gain(seeds: dict[int, Figures], searched: str, rival: str) -> Gain | None:
    values = [100 * (row[searched] - row[rival]) for row in seeds.values() if searched in row and rival in row]
    if not values:
        return None
    mean, std = spread(values)
    return Gain(round(mean, 3), round(std, 3), len(values))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, the first row of which is its head."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *map(list, rows[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table(study: Study, results: dict[str, Any]) -> str:
    """Figures by variants, the longer list downwards; below them the differences."""
    rows = results["rows"]
    figures = [name for name in study.figures if any(name in row for row in rows.values())]
    cells = {
        (variant, name): mean_and_spread(study, name, row[name]) if name in row else "–"
        for variant, row in rows.items()
        for name in figures
    }
    if len(figures) >= len(rows):
        body = [["", *(variant or "mean ± std" for variant in rows)]]
        body += [[name, *(cells[variant, name] for variant in rows)] for name in figures]
    else:
        body = [["", *figures], *([variant, *(cells[variant, name] for name in figures)] for variant in rows)]
    compared = [["difference, paired over seeds", "mean ± std", "seeds", "p"]]
    compared += [difference_row(study, Difference(**item)) for item in results["differences"]]
    return "\n\n".join(map(markdown, [body, compared][: 1 + (len(compared) > 1)]))


def mean_and_spread(study: Study, name: str, row: dict[str, Any]) -> str:
    mean, std = (study.shown(name, study.scale(name) * row[key]) for key in ("mean", "std"))
    if row["seeds"] < study.seeds:
        part = f" ({row['seeds']} of {study.seeds} seeds)"
    else:
        part = " (1 seed)" if row["seeds"] == 1 else ""
    return f"{mean} ± {std}{part}" if row["seeds"] > 1 else f"{mean}{part}"


def difference_row(study: Study, item: Difference) -> list[str]:
    sign = "+" if item.mean > 0 else ""
    mean, std = (study.shown(item.figure, value) for value in (item.mean, item.std))
    p = "–" if item.p is None else f"{item.p:.3f}"
    spread = f" ± {std}" if item.seeds > 1 else ""
    return [item.name, f"{sign}{mean}{spread}", str(item.seeds), p]


def draw(study: Study, cells: Cells, path: Path) -> None:
    """Every seed as a point, every mean as a line; one panel a figure that is a share."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in study.figures if name not in study.plain]
    bars = [(variant, name) for variant in cells for name in names]
    fig, axes = pyplot.subplots(figsize=(2 + 0.45 * len(bars), 4), layout="constrained")
    for place, (variant, name) in enumerate(bars):
        values = [100 * row[name] for row in cells[variant].values() if name in row]
        if values:
            axes.scatter([place] * len(values), values, color=f"C{names.index(name)}", alpha=0.6)
            axes.hlines(statistics.fmean(values), place - 0.3, place + 0.3, color=f"C{names.index(name)}")
    labels = [", ".join(filter(None, bar)) for bar in bars]
    axes.set_xticks(range(len(bars)), labels, rotation=60, ha="right", fontsize=7)
    axes.set(ylabel="%")
    fig.savefig(path, dpi=120)
    pyplot.close(fig)
