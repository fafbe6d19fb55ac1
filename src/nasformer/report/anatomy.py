"""Takes any architecture apart for drawing: single values, and stacks of blocks with a kind and fields."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import fmean, pstdev
from typing import Any, TypeGuard

from nasformer.report.contents import Run
from nasformer.space.arch import Arch
from nasformer.space.genes import ROLES, genes
from nasformer.space.node import Node

Scalar = int | float | str | bool


@dataclass(frozen=True)
class Block:
    """One layer. `kind` is the option of its OneOf, or nothing."""

    kind: str
    fields: Mapping[str, Scalar]


@dataclass(frozen=True)
class Anatomy:
    """What stands outside lists by its path, and each list as a stack of blocks by its path.

    Numbered fields, such as the stage1, stage2 ... of depth and of num_heads, are a stack too: a block for each stage.
    """

    scalars: dict[str, Scalar] = field(default_factory=dict)
    stacks: dict[str, list[Block]] = field(default_factory=dict)

    def numbers(self) -> Iterable[tuple[str, float]]:
        """The numeric fields of all blocks, by name."""
        for stack in self.stacks.values():
            for block in stack:
                yield from ((name, value) for name, value in block.fields.items() if is_number(value))


def dissect(arch: Mapping[str, Any]) -> Anatomy:
    """Takes an architecture apart.

    >>> anatomy = dissect({"embed_dim": 192, "blocks": [{"num_heads": 3}, {"conv": {"kernel": 5}}]})
    >>> anatomy.scalars
    {'embed_dim': 192}
    >>> anatomy.stacks["blocks"]
    [Block(kind='', fields={'num_heads': 3}), Block(kind='conv', fields={'kernel': 5})]
    """
    anatomy = Anatomy()
    _walk(arch, "", anatomy)
    return anatomy


def ranges(anatomies: Iterable[Anatomy]) -> dict[str, tuple[float, float]]:
    """The least and the greatest value of each numeric field.

    >>> ranges([dissect({"blocks": [{"heads": 3}, {"heads": 4}]}), dissect({"blocks": [{"heads": 2}]})])
    {'heads': (2, 4)}
    """
    found: dict[str, tuple[float, float]] = {}
    for anatomy in anatomies:
        for name, value in anatomy.numbers():
            low, high = found.get(name, (value, value))
            found[name] = min(low, value), max(high, value)
    return found


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _walk(value: Any, path: str, anatomy: Anatomy) -> None:
    if unit := _numbered(value):
        parent, dot, name = path.rpartition(".")
        _add_column(anatomy.stacks.setdefault(f"{parent}{dot}{unit}", []), name, value.values())
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            _walk(inner, f"{path}.{name}" if path else name, anatomy)
    elif isinstance(value, Mapping):  # an option without choices: its name says it all
        anatomy.scalars[path] = ""
    elif not _is_list(value):
        anatomy.scalars[path] = value
    elif any(_has_list(item) for item in value):  # stages, which have blocks of their own
        for number, item in enumerate(value, 1):
            _walk(item, f"{path} {number}", anatomy)
    else:
        anatomy.stacks[path] = [_block(item, path.rpartition(".")[2]) for item in value]


def _numbered(value: Any) -> str:
    """What the fields number: "stage" for the values of stage1, stage2 ...; else nothing."""
    if not isinstance(value, Mapping) or len(value) < 2:
        return ""
    unit = str(next(iter(value))).removesuffix("1")
    simple = not any(isinstance(inner, Mapping) or _is_list(inner) for inner in value.values())
    return unit if simple and list(value) == [f"{unit}{number}" for number in range(1, len(value) + 1)] else ""


def _add_column(stack: list[Block], name: str, values: Iterable[Scalar]) -> None:
    for row, value in enumerate(values):
        if row == len(stack):
            stack.append(Block("", {}))
        stack[row] = Block("", {**stack[row].fields, name: value})


def _block(item: Any, name: str) -> Block:
    if not isinstance(item, Mapping):
        return Block("", {name: item})
    kinds: list[str] = []
    fields: dict[str, Scalar] = {}
    _collect(item, "", kinds, fields)
    return Block(" ".join(kinds), fields)


def _collect(value: Mapping[str, Any], prefix: str, kinds: list[str], fields: dict[str, Scalar]) -> None:
    if len(value) == 1 and isinstance(inner := next(iter(value.values())), Mapping):  # the pick of a OneOf
        kinds.append(next(iter(value)))
        _collect(inner, prefix, kinds, fields)
        return
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            _collect(inner, f"{prefix}{name}.", kinds, fields)
        else:
            fields[prefix + name] = inner


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _has_list(value: Any) -> bool:
    inner = value.values() if isinstance(value, Mapping) else ()
    return _is_list(value) or any(_has_list(part) for part in inner)


# ----------------------------------------------------------------------------------------------------------------------
# What was chosen where in a net: the genes of an arch, sorted by stage and by what they decide.
#
# A gene belongs to the stage that its path names (stage1, stage2 ...), wherever in the path that is. In an arch without
# stages, the genes of a stack of blocks are sorted into thirds of its depth. All others are of the whole net.
# ----------------------------------------------------------------------------------------------------------------------

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


# ----------------------------------------------------------------------------------------------------------------------
# Which operator each block of a net has, by stage: what nets with a OneOf in their blocks are told apart by.
#
# Of a kind within a kind, such as an encoder with one of two feed-forward halves, the outer one is the operator.
# ----------------------------------------------------------------------------------------------------------------------

Placed = dict[str, list[str]]
"""Stage -> the operators of its blocks, in the order of the net."""


def operator(block: Block) -> str:
    return block.kind.partition(" ")[0]


def operators(anatomies: Iterable[Anatomy]) -> list[str]:
    """The operators that occur, in the order in which they do; empty where blocks have no kinds.

    >>> operators([dissect({"blocks": [{"conv": {"kernel": 3}}, {"encoder": {"ffn": {"conv": {"kernel": 5}}}}]})])
    ['conv', 'encoder']
    """
    blocks = (block for anatomy in anatomies for stack in anatomy.stacks.values() for block in stack)
    return list(dict.fromkeys(operator(block) for block in blocks if block.kind))


def placed(anatomy: Anatomy) -> Placed:
    """The operators by stage; of a net that is a single stack, by thirds of its depth.

    >>> blocks = [{"conv": {"kernel": 3}}, {"local": {"window": 7}}]
    >>> placed(dissect({"stage1": {"dim": 8, "blocks": blocks}, "stage2": {"dim": 16, "blocks": blocks[:1]}}))
    {'stage 1': ['conv', 'local'], 'stage 2': ['conv']}
    >>> placed(dissect({"dim": 8, "blocks": [*blocks, *blocks]}))
    {'first third': ['conv', 'local'], 'middle third': ['conv'], 'last third': ['local']}
    """
    stacks = {
        stage_name(path): [operator(block) for block in stack]
        for path, stack in anatomy.stacks.items()
        if any(block.kind for block in stack)
    }
    if len(stacks) != 1:
        return stacks
    (blocks,) = stacks.values()
    thirds: Placed = {}
    for place, name in enumerate(blocks):
        thirds.setdefault(THIRDS[3 * place // len(blocks)], []).append(name)
    return thirds


def together(nets: Iterable[Placed]) -> Placed:
    """The operators of several nets, by stage."""
    found: Placed = {}
    for net in nets:
        for stage, names in net.items():
            found.setdefault(stage, []).extend(names)
    return found


def stage_name(path: str) -> str:
    """The path of a stack of blocks, as people say it.

    >>> stage_name("stage1.blocks"), stage_name("stages 2.blocks"), stage_name("encoder.blocks")
    ('stage 1', 'stage 2', 'encoder')
    """
    return re.sub(r"^stages? ?(\d+)$", r"stage \1", path.removesuffix(".blocks"))


def with_operators(run: Run) -> bool:
    """Whether the blocks of the run's winner chose among operators."""
    return run.winner is not None and bool(operators([dissect(run.winner.arch)]))


# ----------------------------------------------------------------------------------------------------------------------
# What the box of a block says: its operator, and what was decided in it, in few letters.
# ----------------------------------------------------------------------------------------------------------------------

WORDS = {
    "expansion": "×{}",
    "mlp_ratio": "MLP ×{}",
    "num_heads": "heads {}",
    "qkv_dim": "q-k-v {}",
    "query_rate": "q ×{}",
    "value_rate": "v ×{}",
}


def block_label(block: Block) -> list[str]:
    """The operator and each field.

    >>> block_label(Block("local", {"expansion": 0.25, "window": 7, "query_rate": 0.5, "num_heads": 8}))
    ['local', '×1/4', 'window 7', 'q ×1/2', 'heads 8']
    >>> block_label(Block("encoder ibn", {"qkv_dim": 64, "ffn.kernel": 5, "ffn.expansion": 4}))
    ['encoder + ibn', 'q-k-v 64', 'kernel 5', '×4']
    """
    last = Counter(name.rpartition(".")[2] for name in block.fields)
    named = {name: name.rpartition(".")[2] for name in block.fields}
    short = {name: end if last[end] == 1 else name for name, end in named.items()}
    fields = [WORDS.get(short[name], short[name] + " {}").format(in_short(v)) for name, v in block.fields.items()]
    return [" + ".join(block.kind.split()), *fields]


def in_short(value: Scalar) -> str:
    """A value in few letters; what is one half, one third ... is said to be so.

    >>> in_short(0.125), in_short(1.0), in_short(3.5), in_short("gelu")
    ('1/8', '1', '3.5', 'gelu')
    """
    if isinstance(value, float) and 0 < value < 1 and abs(1 / value - round(1 / value)) < 1e-9:
        return f"1/{round(1 / value)}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
