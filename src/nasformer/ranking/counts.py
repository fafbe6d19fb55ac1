"""What anyone can count without a proxy: size, depth, and the sum of each number that an arch is made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from nasformer.families import Space
from nasformer.families.segment import Segment
from nasformer.space import Arch
from nasformer.space.arch import Value

Leaf = tuple[tuple[str, ...], float]  # names from the root down to a number, and the number


def trivial_counts(space: Space, archs: Sequence[Arch]) -> dict[str, list[float]]:
    """Parameters, MACs, depth and the totals of an arch's own numbers, each as one value per arch.

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
    totals = [leaf_totals(arch) for arch in archs]
    for name in dict.fromkeys(name for total in totals for name in total):
        # What the plan says goes before a field of the same name.
        counts.setdefault(name, [float(total[name]) for total in totals])
    return counts


def depth_of(plan: Sequence[Segment]) -> int:
    """How many segments of a plan stand among its blocks."""
    return sum("blocks" in segment.name.split(".") for segment in plan)


def leaf_totals(arch: Arch) -> Counter[str]:
    """The sum of an arch's numbers by name, wherever they stand in it.

    >>> leaf_totals(Arch(width=16, heads={"stage1": 2, "stage2": 4}, blocks=[{"conv": {"kernel": 3}}, {"mlp": {}}]))
    Counter({'width': 16, 'heads': 6, 'kernel': 3})
    """
    totals: Counter[str] = Counter()
    for path, number in _leaves(arch):
        totals[_name(path)] += number  # type: ignore[assignment]  # a Counter of floats is one as well
    return totals


def _leaves(value: Value, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    if isinstance(value, Arch):
        for name, part in value.items():
            yield from _leaves(part, (*path, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _leaves(item, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _name(path: Sequence[str]) -> str:
    """The innermost name without a number at its end: "stage1" says where, "num_heads" says what.

    >>> _name(("num_heads", "stage1")), _name(("stage1", "num_heads")), _name(("heads2",))
    ('num_heads', 'num_heads', 'heads')
    """
    plain = [name for name in path if not re.search(r"\d$", name)]
    return plain[-1] if plain else re.sub(r"_?\d+$", "", path[-1]) or path[-1]
