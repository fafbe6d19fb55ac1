"""What was chosen where in a net: the genes of an arch, sorted by stage and by what they decide.

A gene belongs to the stage that its path names (stage1, stage2 ...), wherever in the path that is. In an arch without
stages, the genes of a stack of blocks are sorted into thirds of its depth. All others are of the whole net.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import reduce
from statistics import fmean, pstdev
from typing import Any

from nasformer.report.anatomy import Scalar, is_number
from nasformer.space import ROLES, Arch, Node, genes

THIRDS = ("first third", "middle third", "last third")
WHOLE = "whole net"
BLOCKS = "blocks"
RATIOS = (("qkv_dim", "embed_dim"),)
"""Pairs of genes of one stage whose quotient says more than either."""

Reading = dict[str, dict[str, list[Scalar]]]
"""Stage -> what is decided (kernel, depth, kind of block ...) -> every decision, in the order of the net."""


def read(root: Node, arch: Arch) -> Reading:
    """Every decision of an arch, by stage and name.

    Depths are called depth; the pick of a OneOf has the name of the field that holds it.

    >>> from nasformer.space import Choice, OneOf, Repeat, Struct
    >>> block = OneOf(conv=Struct(kernel=Choice(3, 5)), pool=Struct())
    >>> root = Struct(stage1=Struct(width=Choice(8, 16), blocks=Repeat(block, depth=Choice(1, 2))))
    >>> read(root, root.validate({"stage1": {"width": 8, "blocks": [{"conv": {"kernel": 5}}, {"pool": {}}]}}))
    {'stage1': {'blocks': ['conv', 'pool'], 'width': [8], 'depth': [2], 'kernel': [5]}}
    """
    decided = {path: value for role in ROLES for path, value in genes(root, arch, role).items()}
    staged = any(stage_of(path) for path in decided)
    reading: Reading = {}
    for path, value in decided.items():
        stage = stage_of(path) or (WHOLE if staged else _third(arch, path))
        reading.setdefault(stage, {}).setdefault(_name(arch, path), []).append(value)
    for row in reading.values():
        _add_ratios(row)
    return reading


def stage_of(path: tuple[Any, ...]) -> str:
    """The stage that a path names; nothing where it names none."""
    return next((part for part in path if re.fullmatch(r"stage\d+", str(part))), "")


def _third(arch: Arch, path: tuple[Any, ...]) -> str:
    place = next((place for place, part in enumerate(path) if isinstance(part, int)), None)
    if place is None:
        return WHOLE
    return THIRDS[3 * path[place] // len(_at(arch, path[:place]))]


def _name(arch: Arch, path: tuple[Any, ...]) -> str:
    """The last name of the path that is not a stage; a stage may itself be the stack of blocks."""
    if isinstance(_at(arch, path), tuple):
        return "depth"
    return next((part for part in reversed(path) if isinstance(part, str) and not stage_of((part,))), BLOCKS)


def _at(arch: Arch, path: tuple[Any, ...]) -> Any:
    return reduce(lambda value, part: value[part], path, arch)


def _add_ratios(row: dict[str, list[Any]]) -> None:
    for above, below in RATIOS:
        if row.get(above) and len(row.get(below, [])) == 1:
            row[f"{above} / {below}"] = [value / row[below][0] for value in row[above]]


def pool(readings: Iterable[Reading]) -> Reading:
    """The decisions of several archs together, stages in the order of the net."""
    pooled: Reading = {}
    for reading in readings:
        for stage, row in reading.items():
            for name, values in row.items():
                pooled.setdefault(stage, {}).setdefault(name, []).extend(values)
    return dict(sorted(pooled.items(), key=lambda item: _place(item[0])))


def _place(stage: str) -> int:
    others = (*THIRDS, WHOLE)
    return others.index(stage) if stage in others else number_of(stage) - 1000


def number_of(stage: str) -> int:
    return int(stage.removeprefix("stage"))


def values(reading: Reading, stage: str, name: str) -> list[Any]:
    return reading.get(stage, {}).get(name, [])


def shares(values: Iterable[Scalar]) -> dict[Scalar, float]:
    """How often each value was chosen, in the order of the values.

    >>> shares(["ibn", "convnext", "ibn", "ibn"])
    {'convnext': 0.25, 'ibn': 0.75}
    """
    counts = Counter(values)
    return {value: counts[value] / counts.total() for value in sorted(counts, key=lambda one: (str(type(one)), one))}


def summary(values: list[Any]) -> dict[str, Any]:
    """The share of each value; of numbers mean and standard deviation as well."""
    found = {"n": len(values), "shares": {str(value): share for value, share in shares(values).items()}}
    return {**found, "mean": fmean(values), "std": pstdev(values)} if all(map(is_number, values)) else found


def table(reading: Reading) -> dict[str, dict[str, dict[str, Any]]]:
    """The reading in figures: stage -> name -> summary."""
    return {stage: {name: summary(found) for name, found in row.items()} for stage, row in reading.items()}
