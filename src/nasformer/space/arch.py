"""Arch: an architecture as a small immutable value that reads like a record, can be a dict key and prints as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nasformer.errors import UserError
from nasformer.utils.tables import html_row, html_table

Value = Any  # int, float, str, bool, Arch, or a tuple of these


class Arch(Mapping[str, Value]):
    """One architecture of a space, or one part of it (a block, a stage).

    Fields are read as attributes or as keys and keep the order of the space's declaration. Two archs are
    equal when their fields are, whatever the order. Lists and dicts given to the constructor become tuples
    and archs, so that an arch can always be hashed and never changes.

    >>> arch = Arch(embed_dim=192, blocks=[{"num_heads": 3}, {"num_heads": 4}])
    >>> arch
    Arch(embed_dim=192, blocks=(Arch(num_heads=3), Arch(num_heads=4)))
    >>> arch.blocks[1].num_heads, arch["embed_dim"], len(arch.blocks)
    (4, 192, 2)
    >>> arch.to_json()
    '{"embed_dim":192,"blocks":[{"num_heads":3},{"num_heads":4}]}'
    >>> Arch.from_json(arch.to_json()) == arch
    True
    """

    __slots__ = ("_fields", "_hash", "_text")

    _fields: dict[str, Value]
    _hash: int | None
    _text: str | None

    def __init__(self, /, **fields: Value) -> None:
        for name, value in fields.items():
            if type(value) not in _FROZEN:
                fields[name] = freeze(value)
        _set(self, "_fields", fields)
        _set(self, "_hash", None)
        _set(self, "_text", None)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Value]) -> Arch:
        return cls(**fields)

    @classmethod
    def from_json(cls, text: str) -> Arch:
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"the architecture is not valid JSON ({error}); expected a JSON object") from None
        if not isinstance(fields, dict):
            raise UserError(f"the architecture is {text.strip()[:40]}, expected a JSON object")
        return cls.from_dict(fields)

    @classmethod
    def from_plain(cls, fields: dict[str, Value]) -> Arch:
        """An arch that stays text until a field is read: a report of 100,000 candidates reads few."""
        arch = cls.__new__(cls)
        _set(arch, "_hash", None)
        _set(arch, "_text", _dumps(fields))
        return arch

    def to_dict(self) -> dict[str, Value]:
        """Plain dicts, lists and scalars, ready for JSON or YAML."""
        return thaw(self)

    def to_json(self) -> str:
        """Compact JSON. A part without parts of its own keeps its text: many archs share it."""
        if self._text:
            return self._text
        values = self._fields.values()
        text = "{" + ",".join([f"{_dumps(name)}:{_json(value)}" for name, value in self._fields.items()]) + "}"
        if tuple not in map(type, values) and Arch not in map(type, values):
            _set(self, "_text", text)
        return text

    def __getitem__(self, name: str) -> Value:
        return self._fields[name]

    def __getattr__(self, name: str) -> Value:
        if name == "_fields":  # of an arch that is still text
            _set(self, "_fields", Arch.from_json(self._text or "{}")._fields)
            return self._fields
        try:
            return self._fields[name]
        except KeyError:
            fields = ", ".join(self._fields)
            raise AttributeError(f"this arch has no field {name!r}, it has: {fields}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return self._fields == other._fields if isinstance(other, Arch) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            _set(self, "_hash", hash(frozenset(self._fields.items())))
        return self._hash  # type: ignore[return-value]

    def __setattr__(self, name: str, value: Value) -> None:
        raise AttributeError(f"an arch cannot change; make a new one: Arch(**{{**arch, {name!r}: value}})")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("an arch cannot change; make a new one without this field")

    def __repr__(self) -> str:
        return f"Arch({', '.join(f'{name}={value!r}' for name, value in self._fields.items())})"

    def _repr_html_(self) -> str:
        """A row for each field, for notebooks."""
        rows = [html_row([name, json.dumps(value)]) for name, value in self.to_dict().items()]
        return html_table(["field", "value"], rows)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle and copy would otherwise fill the slots one by one, which __setattr__ forbids. The hash stays
        # behind on purpose: hashes of strings differ from process to process.
        return Arch.from_dict, (self._fields,)


_set = object.__setattr__
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_FROZEN = frozenset({int, float, str, bool, Arch})
_blocks: dict[str, Arch] = {}
MOST_BLOCKS = 10_000


def freeze(value: Value) -> Value:
    """The immutable form of a value: lists become tuples, mappings become archs."""
    kind = type(value)
    if kind is dict:
        return _block(value)
    if kind in (list, tuple):
        return value if kind is tuple and _FROZEN.issuperset(map(type, value)) else tuple(map(freeze, value))
    if isinstance(value, Arch | int | float | str):
        return value
    if isinstance(value, Mapping):
        return Arch(**value)
    if isinstance(value, list | tuple):
        return tuple(map(freeze, value))
    name = kind.__name__
    raise UserError(f"an arch cannot hold {value!r} ({name}), expected numbers, strings, lists or dicts of these")


def _block(fields: dict[str, Value]) -> Arch:
    """A part of an arch. Equal parts without lists, of which there are few, are one object.

    So 100,000 archs that are read from a journal take a fifth of the memory.
    """
    if list in map(type, fields.values()):
        return Arch(**fields)
    key = repr(fields)  # 4 and 4.0 are equal, but written differently
    block = _blocks.get(key)
    if block is None:
        block = Arch(**fields)
        if len(_blocks) < MOST_BLOCKS:
            _blocks[key] = block
    return block


def _json(value: Value) -> str:
    if type(value) is Arch:
        return value.to_json()
    return f"[{','.join(map(_json, value))}]" if type(value) is tuple else _dumps(value)


def thaw(value: Value) -> Value:
    """The plain form of a value: tuples become lists, archs become dicts."""
    if type(value) is Arch:
        return {name: thaw(field) for name, field in value._fields.items()}
    if type(value) is tuple:
        return [thaw(item) for item in value]
    return value


class ArchPool:
    """One shared Arch for each member of a small node.

    Blocks have few distinct values: a search that keeps 100,000 archs stores and hashes each block once.
    """

    LIMIT = 10_000  # members of a node that is worth it

    def __init__(self, cardinality: int) -> None:
        self._archs: dict[tuple[Any, ...], Arch] | None = {} if cardinality <= self.LIMIT else None

    def arch(self, fields: Mapping[str, Value]) -> Arch:
        if self._archs is None:
            return Arch(**fields)
        key = tuple(fields.items())
        arch = self._archs.get(key)
        if arch is None:
            arch = self._archs[key] = Arch(**fields)
        return arch
