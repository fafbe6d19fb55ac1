"""Takes any architecture apart for drawing: single values, and stacks of blocks with a kind and fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

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
