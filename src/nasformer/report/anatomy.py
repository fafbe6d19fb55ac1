"""Architectures taken apart: into blocks for drawings, into choices by stage for statistics.

`dissect` needs the architecture alone and so works for spaces that are not known any more. `choices_by_stage` asks the
space, which knows the name of every choice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import fmean, pstdev
from typing import Any, TypeGuard

from nasformer.space.arch import Arch
from nasformer.space.node import ROLES, Node, genes
from nasformer.space.nodes import Scalar

# Blocks


@dataclass(frozen=True)
class Block:
    """A layer; `kind` is the option of its OneOf, or empty."""

    kind: str
    fields: Mapping[str, Scalar]

    @property
    def operator(self) -> str:
        """The kind; of a kind within a kind, such as an encoder with one of two feed-forward halves, the outer one."""
        return self.kind.partition(" ")[0]


@dataclass(frozen=True)
class Anatomy:
    """An architecture as single values and stacks of blocks, both by path.

    Numbered fields, such as the stage1, stage2 ... of depth and of num_heads, are a stack too: a block for each stage.
    """

    scalars: dict[str, Scalar] = field(default_factory=dict)
    stacks: dict[str, list[Block]] = field(default_factory=dict)

    def blocks(self) -> Iterable[Block]:
        return (block for stack in self.stacks.values() for block in stack)


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
    if len(value) == 1 and isinstance(inner := next(iter(value.values())), Mapping):  # the option of a OneOf
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
    return _is_list(value) or (isinstance(value, Mapping) and any(map(_has_list, value.values())))


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_ranges(anatomies: Iterable[Anatomy]) -> dict[str, tuple[float, float]]:
    """The smallest and the largest value of each numeric field.

    >>> value_ranges([dissect({"blocks": [{"heads": 3}, {"heads": 4}]}), dissect({"blocks": [{"heads": 2}]})])
    {'heads': (2, 4)}
    """
    ranges: dict[str, tuple[float, float]] = {}
    for block in (block for anatomy in anatomies for block in anatomy.blocks()):
        for name, value in block.fields.items():
            if is_number(value):
                low, high = ranges.get(name, (value, value))
                ranges[name] = min(low, value), max(high, value)
    return ranges


# Blocks in words

LABELS = {
    "expansion": "×{}",
    "mlp_ratio": "MLP ×{}",
    "num_heads": "heads {}",
    "qkv_dim": "q-k-v {}",
    "query_rate": "q ×{}",
    "value_rate": "v ×{}",
}


def block_label(block: Block) -> list[str]:
    """The operator of a block and each of its fields, in few letters.

    >>> block_label(Block("local", {"expansion": 0.25, "window": 7, "query_rate": 0.5, "num_heads": 8}))
    ['local', '×1/4', 'window 7', 'q ×1/2', 'heads 8']
    >>> block_label(Block("encoder ibn", {"qkv_dim": 64, "ffn.kernel": 5, "ffn.expansion": 4}))
    ['encoder + ibn', 'q-k-v 64', 'kernel 5', '×4']
    """
    last = Counter(path.rpartition(".")[2] for path in block.fields)
    words = [" + ".join(block.kind.split())]
    for path, value in block.fields.items():
        name = path.rpartition(".")[2]
        name = name if last[name] == 1 else path
        words.append(LABELS.get(name, name + " {}").format(short_value(value)))
    return words


def short_value(value: Scalar) -> str:
    """A value in few letters, fractions such as 1/8 as such.

    >>> short_value(0.125), short_value(1.0), short_value(3.5), short_value("gelu")
    ('1/8', '1', '3.5', 'gelu')
    """
    if isinstance(value, float) and 0 < value < 1 and abs(1 / value - round(1 / value)) < 1e-9:
        return f"1/{round(1 / value)}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def stage_title(path: str) -> str:
    """The path of a stack of blocks, as people say it.

    >>> stage_title("stage1.blocks"), stage_title("stages 2.blocks"), stage_title("encoder.blocks")
    ('stage 1', 'stage 2', 'encoder')
    """
    return re.sub(r"^stages? ?(\d+)$", r"stage \1", path.removesuffix(".blocks"))


# Operators by stage

THIRDS = ("first third", "middle third", "last third")
OperatorsByStage = dict[str, list[str]]
"""Stage -> the operators of its blocks, in the order of the net."""


def operators(anatomies: Iterable[Anatomy]) -> list[str]:
    """The operators in the order in which they occur; empty where blocks have no kinds.

    >>> operators([dissect({"blocks": [{"conv": {"kernel": 3}}, {"encoder": {"ffn": {"conv": {"kernel": 5}}}}]})])
    ['conv', 'encoder']
    """
    blocks = (block for anatomy in anatomies for block in anatomy.blocks())
    return list(dict.fromkeys(block.operator for block in blocks if block.kind))


def operators_by_stage(anatomy: Anatomy) -> OperatorsByStage:
    """The operators by stage; of a net that is a single stack, by thirds of its depth.

    >>> blocks = [{"conv": {"kernel": 3}}, {"local": {"window": 7}}]
    >>> net = {"stage1": {"dim": 8, "blocks": blocks}, "stage2": {"dim": 16, "blocks": blocks[:1]}}
    >>> operators_by_stage(dissect(net))
    {'stage 1': ['conv', 'local'], 'stage 2': ['conv']}
    >>> operators_by_stage(dissect({"dim": 8, "blocks": [*blocks, *blocks]}))
    {'first third': ['conv', 'local'], 'middle third': ['conv'], 'last third': ['local']}
    """
    stacks = {
        stage_title(path): [block.operator for block in stack]
        for path, stack in anatomy.stacks.items()
        if any(block.kind for block in stack)
    }
    if len(stacks) != 1:
        return stacks
    (blocks,) = stacks.values()
    return merge_stages({THIRDS[3 * place // len(blocks)]: [name]} for place, name in enumerate(blocks))


def merge_stages(nets: Iterable[OperatorsByStage]) -> OperatorsByStage:
    """The operators of several nets, by stage."""
    merged: OperatorsByStage = {}
    for net in nets:
        for stage, names in net.items():
            merged.setdefault(stage, []).extend(names)
    return merged


# Choices by stage: a choice belongs to the stage that its path names (stage1, stage2 ...), wherever in the path. In an
# arch without stages, choices of blocks are sorted into thirds of the depth. All others are of the whole net.

WHOLE = "whole net"
BLOCKS = "blocks"
RATIOS = (("qkv_dim", "embed_dim"),)
"""Pairs of choices of one stage whose quotient says more than either."""

ChoicesByStage = dict[str, dict[str, list[Any]]]
"""Stage -> name of a choice (kernel, depth, kind of block ...) -> every value chosen, in the order of the net."""


def choices_by_stage(root: Node, arch: Arch) -> ChoicesByStage:
    """Every choice of an arch, by stage and name.

    Depths are called depth; the option of a OneOf has the name of the field that holds it.

    >>> from nasformer.space import Choice, OneOf, Repeat, Struct
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


def stage_of(path: Sequence[Any]) -> str:
    """The stage that a path names; empty where it names none."""
    return next((part for part in path if re.fullmatch(r"stage\d+", str(part))), "")


def stage_number(stage: str) -> int:
    return int(stage.removeprefix("stage"))


def _third(arch: Arch, path: tuple[Any, ...]) -> str:
    place = next((place for place, part in enumerate(path) if isinstance(part, int)), None)
    if place is None:
        return WHOLE
    return THIRDS[3 * path[place] // len(_value_at(arch, path[:place]))]


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
    for one in choices:
        for stage, row in one.items():
            for name, values in row.items():
                pooled.setdefault(stage, {}).setdefault(name, []).extend(values)
    others = (*THIRDS, WHOLE)
    order = {stage: others.index(stage) if stage in others else stage_number(stage) - 1000 for stage in pooled}
    return {stage: pooled[stage] for stage in sorted(pooled, key=lambda stage: order[stage])}


def choice_names(choices: ChoicesByStage) -> list[str]:
    """What is chosen in any stage, kinds before numbers."""
    known = {name: values for row in choices.values() for name, values in row.items()}
    return sorted(known, key=lambda name: is_number(known[name][0]))


def values_of(choices: ChoicesByStage, name: str, stage: str | None = None) -> list[Any]:
    """The values of a choice in a stage, or in all of them."""
    stages = choices if stage is None else [stage]
    return [value for stage in stages for value in choices.get(stage, {}).get(name, [])]


def shares(values: Iterable[Scalar]) -> dict[Scalar, float]:
    """How often each value was chosen, in the order of the values.

    >>> shares(["ibn", "convnext", "ibn", "ibn"])
    {'convnext': 0.25, 'ibn': 0.75}
    """
    counts = Counter(values)
    return {value: counts[value] / counts.total() for value in sorted(counts, key=lambda one: (str(type(one)), one))}


def summarize(choices: ChoicesByStage) -> dict[str, dict[str, dict[str, Any]]]:
    """Stage -> name -> the share of each value; of numbers mean and standard deviation as well."""
    return {stage: {name: _summary(values) for name, values in row.items()} for stage, row in choices.items()}


def _summary(values: list[Any]) -> dict[str, Any]:
    summary = {"n": len(values), "shares": {str(value): share for value, share in shares(values).items()}}
    return {**summary, "mean": fmean(values), "std": pstdev(values)} if all(map(is_number, values)) else summary
