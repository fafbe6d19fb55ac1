"""Struct: several named fields, chosen independently except where a rule ties them. A member is an arch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from random import Random
from reprlib import repr as short
from typing import Any

from nasformer.errors import UserError
from nasformer.space.arch import Arch, Value
from nasformer.space.choice import Choice
from nasformer.space.mutation import Mutation
from nasformer.space.node import FIRST, Dice, Node, Path, below, check_children, lazy_product
from nasformer.space.roles import Gene, Role
from nasformer.space.rules import Rule, grouped


class Struct(Node):
    """Named fields, and rules between them.

    Fields joined by rules form a group, whose values are drawn, crossed and counted together; the other
    fields are free.

    >>> from nasformer.space import Choice
    >>> rule = Rule(("heads1", "heads2"), lambda one, two: two % one == 0, "heads1 must divide heads2")
    >>> stages = Struct(rule, heads1=Choice(2, 4), heads2=Choice(2, 4), base_dim=Choice(16, 24))
    >>> stages.cardinality, stages.largest()
    (6, Arch(heads1=4, heads2=4, base_dim=24))
    >>> stages.validate({"heads1": 4, "heads2": 2, "base_dim": 16})
    Traceback (most recent call last):
    nasformer.errors.UserError: arch breaks a rule: heads1 must divide heads2 (heads1 is 4, heads2 is 2)
    """

    def __init__(self, /, *rules: Rule, **fields: Node) -> None:
        check_children("Struct field", fields)
        _check_rules(rules, fields)
        self.rules, self.fields = rules, fields
        self.groups = grouped(rules, fields)
        tied = {name for group in self.groups for name in group.fields}
        self.free = {name: field for name, field in fields.items() if name not in tied}
        self.cardinality = prod(field.cardinality for field in self.free.values())
        self.cardinality *= prod(len(group.combinations) for group in self.groups)
        ends = list(accumulate((field.code_length for field in fields.values()), initial=0))
        self.code_length = ends[-1]
        self._spans = {name: slice(*span) for name, span in zip(fields, pairwise(ends), strict=True)}

    def __repr__(self) -> str:
        parts = [*map(repr, self.rules), *(f"{name}={field!r}" for name, field in self.fields.items())]
        return f"Struct({', '.join(parts)})"

    def _arch(self, *parts: Mapping[str, Value]) -> Arch:
        """The arch made of the values of free fields and groups, in the order of the declaration."""
        values = {name: value for part in parts for name, value in part.items()}
        return Arch(**{name: values[name] for name in self.fields})

    def sample(self, rng: Dice, given: Value = None) -> Arch:
        if given is None:
            free = {name: field.sample(rng) for name, field in self.free.items()}
        else:
            free = {name: field.sample(rng, given[name]) for name, field in self.free.items()}
        if not self.groups:  # the common case, kept fast
            return Arch(**free)
        return self._arch(free, *(group.sample(rng, given) for group in self.groups))

    def deepest(self) -> Struct:
        return Struct(*self.rules, **{**self.fields, **{name: field.deepest() for name, field in self.free.items()}})

    def enumerate(self) -> Iterator[Arch]:
        parts: list[Callable[[], Any]] = [_named_members(name, field) for name, field in self.free.items()]
        parts += [group.combinations.__iter__ for group in self.groups]
        for chosen in lazy_product(*parts):
            yield self._arch(*chosen)

    def validate(self, value: Value, path: str = "arch") -> Arch:
        self._check_names(value, path)
        arch = Arch(**{name: field.validate(value[name], f"{path}.{name}") for name, field in self.fields.items()})
        for rule in self.rules:
            if not rule.holds(arch):
                found = ", ".join(f"{name} is {short(arch[name])}" for name in rule.fields)
                raise UserError(f"{path} breaks a rule: {rule.why} ({found})")
        return arch

    def _check_names(self, value: Value, path: str) -> None:
        if isinstance(value, Mapping) and value.keys() == self.fields.keys():
            return
        expected = ", ".join(self.fields) or "none"
        if not isinstance(value, Mapping):
            raise UserError(f"{path} is {short(value)}, expected the fields: {expected}")
        for name in value:
            if name not in self.fields:
                raise UserError(f"{path} has the unknown field {name!r}, allowed: {expected}")
        for name in self.fields:
            if name not in value:
                raise UserError(f"{path}.{name} is missing, expected the fields: {expected}")

    def encode(self, value: Value) -> list[float]:
        return [number for name, field in self.fields.items() for number in field.encode(value[name])]

    def _decode(self, vector: Sequence[float]) -> Arch:
        values = {name: field._decode(vector[self._spans[name]]) for name, field in self.fields.items()}
        return self._arch(values, *(group.nearest(values) for group in self.groups))

    def mutate(self, value: Value, rng: Random, mutation: Mutation) -> Arch:
        free = {name: field.mutate(value[name], rng, mutation) for name, field in self.free.items()}
        return self._arch(free, *(group.mutate(value, rng, mutation) for group in self.groups))

    def cross(self, a: Value, b: Value, rng: Random) -> Arch:
        free = {name: field.cross(a[name], b[name], rng) for name, field in self.free.items()}
        return self._arch(free, *(group.cross(a, b, rng) for group in self.groups))

    def neighbours(self, value: Value, fresh: Dice = FIRST) -> Iterator[Arch]:
        for name, field in self.fields.items():
            for step in field.neighbours(value[name], fresh):
                arch = Arch(**{**value, name: step})
                if all(rule.holds(arch) for rule in self.rules):
                    yield arch

    def picks(self, value: Value, path: Path = ()) -> Iterator[tuple[Path, str]]:
        for name, field in self.fields.items():
            yield from field.picks(value[name], (*path, name))

    def genes(self, value: Value, path: Path = ()) -> Iterator[Gene]:
        for name, field in self.fields.items():
            yield from field.genes(value[name], (*path, name))

    def roles(self) -> set[Role]:
        return set[Role]().union(*(field.roles() for field in self.fields.values()))

    def dimensions(self, name: str = "") -> Iterator[tuple[str, Choice]]:
        for part, field in self.fields.items():
            yield from field.dimensions(below(name, part))

    def replaced(self, choices: Mapping[str, Choice], name: str = "") -> Struct:
        fields = {part: field.replaced(choices, below(name, part)) for part, field in self.fields.items()}
        return Struct(*self.rules, **fields)

    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        for part, field in self.fields.items():
            yield from field.uses(value[part], below(name, part))

    def carry(self, value: Value, rng: Dice) -> Arch:
        known = value if isinstance(value, Mapping) else {}
        free = {name: field.carry(known.get(name), rng) for name, field in self.free.items()}
        return self._arch(free, *(group.carry(known, rng) for group in self.groups))

    def _corners(self) -> list[Arch]:
        parts: list[list[Mapping[str, Value]]] = [group.corners() for group in self.groups]
        parts += [[{name: corner} for corner in field._corners()] for name, field in self.free.items()]
        count = max(map(len, parts), default=1)
        return [self._arch(*(part[min(k, len(part) - 1)] for part in parts)) for k in range(count)]


def _named_members(name: str, field: Node) -> Callable[[], Iterator[dict[str, Value]]]:
    return lambda: ({name: value} for value in field.enumerate())


def _check_rules(rules: tuple[Rule, ...], fields: dict[str, Node]) -> None:
    for rule in rules:
        if not isinstance(rule, Rule):
            raise UserError(f"Struct got {rule!r} as a rule, expected Rule(fields, test, why)")
        for name in rule.fields:
            if name not in fields:
                raise UserError(f"a rule names the unknown field {name!r}, allowed: {', '.join(fields)}")
