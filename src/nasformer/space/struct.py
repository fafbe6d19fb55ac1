"""Struct: named fields, chosen independently except where a rule ties them. A member is an arch.

Fields that rules tie together form a group. Its valid combinations are listed once, so that counting and sampling
stay exact and never retry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, product
from math import prod
from random import Random
from reprlib import repr as short
from typing import Any

from nasformer.errors import UserError
from nasformer.space.arch import Arch, ArchPool, Value
from nasformer.space.node import FIRST, Gene, Mutation, Node, Path, Rng, Role, below, check_children, lazy_product
from nasformer.space.nodes import Choice

MAX_COMBINATIONS = 100_000
MUTATION_TRIES = 10

Values = Mapping[str, Value]


@dataclass(frozen=True)
class Rule:
    """A condition between fields: `test` gets their values in the order of `fields`, `why` is its error message.

    >>> rule = Rule(("dim", "heads"), lambda dim, heads: dim % heads == 0, "heads must divide dim")
    >>> rule
    Rule(fields=('dim', 'heads'), why='heads must divide dim')
    >>> rule.holds({"dim": 192, "heads": 5})
    False
    """

    fields: tuple[str, ...]
    test: Callable[..., bool] = dataclasses.field(repr=False)
    why: str

    def __post_init__(self) -> None:
        if not isinstance(self.fields, tuple) or not self.fields:
            raise UserError(f"a rule has the fields {self.fields!r}, expected a tuple of names such as ('heads',)")

    def holds(self, values: Values) -> bool:
        return bool(self.test(*[values[name] for name in self.fields]))


class Group:
    """Fields tied together by rules, and the combinations of their values that all the rules allow.

    `combinations` are dicts by field name, ordered by the sum of the positions of their values: the first is
    the smallest, the last the largest.
    """

    def __init__(self, fields: dict[str, Node], rules: tuple[Rule, ...]) -> None:
        self.fields, self.rules = fields, rules
        total = prod(field.cardinality for field in fields.values())
        if total > MAX_COMBINATIONS:
            raise UserError(
                f"rules join {', '.join(fields)} into {total:,} combinations, expected at most "
                f"{MAX_COMBINATIONS:,}; put the rules on a smaller Struct"
            )
        self.combinations = [values for values in self._by_size() if self.allows(values)]
        if not self.combinations:
            whys = "; ".join(rule.why for rule in rules)
            raise UserError(f"no combination of {', '.join(fields)} keeps the rules ({whys}); loosen one")

    def _by_size(self) -> list[dict[str, Value]]:
        every = product(*(enumerate(field.enumerate()) for field in self.fields.values()))
        ranked = sorted(every, key=lambda members: sum(position for position, _ in members))
        return [dict(zip(self.fields, (value for _, value in members), strict=True)) for members in ranked]

    def allows(self, values: Values) -> bool:
        return all(rule.holds(values) for rule in self.rules)

    def sample(self, rng: Rng, given: Values | None = None) -> Values:
        allowed = self.combinations if given is None else self._with_picks_of(given)
        return allowed[rng.randrange(len(allowed))]

    def _with_picks_of(self, given: Values) -> list[dict[str, Value]]:
        """The combinations that take the same options as `given`, wherever both have a OneOf."""
        fixed = dict(self._picks(given))
        return [
            values
            for values in self.combinations
            if all(fixed.get(path, option) == option for path, option in self._picks(values))
        ]

    def mutate(self, value: Values, rng: Random, mutation: Mutation) -> Values:
        """Mutate the fields; when that breaks a rule try again a few times, then keep the parent's."""
        for _ in range(MUTATION_TRIES):
            child = {name: field.mutate(value[name], rng, mutation) for name, field in self.fields.items()}
            if self.allows(child):
                return child
        return self._part_of(value)

    def cross(self, a: Values, b: Values, rng: Random) -> Values:
        """The whole group from one parent: a mix of both could break a rule."""
        return self._part_of(a if rng.random() < 0.5 else b)

    def adapt(self, values: Values, rng: Rng) -> Values:
        """Adapt the fields; when that breaks a rule, a random combination of those that keep the most of them."""
        child = {name: field.adapt(values.get(name), rng) for name, field in self.fields.items()}
        if self.allows(child):
            return child
        shared = values.keys() & child.keys()
        kept = [sum(combination[name] == child[name] for name in shared) for combination in self.combinations]
        most = max(kept)
        allowed = [combination for combination, count in zip(self.combinations, kept, strict=True) if count == most]
        return allowed[rng.randrange(len(allowed))]

    def _part_of(self, value: Values) -> Values:
        return {name: value[name] for name in self.fields}

    def nearest(self, values: Values) -> Values:
        """The values themselves if the rules allow them, else the combination with the nearest code."""
        if self.allows(values):
            return self._part_of(values)
        code = self._encode(values)
        distances = [sum(abs(x - y) for x, y in zip(code, other, strict=True)) for other in self._codes]
        return self.combinations[distances.index(min(distances))]

    @cached_property
    def _codes(self) -> list[list[float]]:
        return [self._encode(values) for values in self.combinations]

    def _encode(self, values: Values) -> list[float]:
        return [number for name, field in self.fields.items() for number in field.encode(values[name])]

    def corners(self) -> list[Values]:
        """The largest combinations that together take every option which the rules let a OneOf take."""
        largest: list[Values] = []
        seen: set[tuple[Path, str]] = set()
        for values in reversed(self.combinations):
            options = set(self._picks(values))
            if not largest or options - seen:
                largest.append(values)
                seen |= options
        return largest[::-1]

    def _picks(self, values: Values) -> Iterable[tuple[Path, str]]:
        for name, node in self.fields.items():
            yield from node.picks(values[name], (name,))


def group_fields(rules: tuple[Rule, ...], fields: dict[str, Node]) -> list[Group]:
    """One group for each set of fields that rules connect, directly or through other rules."""
    joined: list[set[str]] = []
    for rule in rules:
        touching = [names for names in joined if names & set(rule.fields)]
        joined = [names for names in joined if names not in touching]
        joined.append(set(rule.fields).union(*touching))
    return [
        Group(
            {name: field for name, field in fields.items() if name in names},
            tuple(rule for rule in rules if names & set(rule.fields)),
        )
        for names in joined
    ]


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
        self.groups = group_fields(rules, fields)
        tied = {name for group in self.groups for name in group.fields}
        self.free = {name: field for name, field in fields.items() if name not in tied}
        self.cardinality = prod(field.cardinality for field in self.free.values())
        self.cardinality *= prod(len(group.combinations) for group in self.groups)
        ends = list(accumulate((field.code_length for field in fields.values()), initial=0))
        self.code_length = ends[-1]
        self._spans = {name: slice(*span) for name, span in zip(fields, pairwise(ends), strict=True)}
        self._pool = ArchPool(self.cardinality)

    def __repr__(self) -> str:
        parts = [*map(repr, self.rules), *(f"{name}={field!r}" for name, field in self.fields.items())]
        return f"Struct({', '.join(parts)})"

    def _arch(self, *parts: Values) -> Arch:
        """The arch made of the values of free fields and groups, in the order of the declaration."""
        if len(parts) == 1:  # no groups: the common case, kept fast
            return self._pool.arch(parts[0])
        values = {name: value for part in parts for name, value in part.items()}
        return self._pool.arch({name: values[name] for name in self.fields})

    def sample(self, rng: Rng, given: Value = None) -> Arch:
        if given is None:
            free = {name: field.sample(rng) for name, field in self.free.items()}
        else:
            free = {name: field.sample(rng, given[name]) for name, field in self.free.items()}
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
                values = ", ".join(f"{name} is {short(arch[name])}" for name in rule.fields)
                raise UserError(f"{path} breaks a rule: {rule.why} ({values})")
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
        old = value._fields
        free = {name: field.mutate(old[name], rng, mutation) for name, field in self.free.items()}
        if not self.groups and free == old:
            return value  # type: ignore[no-any-return]
        return self._arch(free, *(group.mutate(value, rng, mutation) for group in self.groups))

    def cross(self, a: Value, b: Value, rng: Random) -> Arch:
        free = {name: field.cross(a[name], b[name], rng) for name, field in self.free.items()}
        return self._arch(free, *(group.cross(a, b, rng) for group in self.groups))

    def neighbours(self, value: Value, fresh: Rng = FIRST) -> Iterator[Arch]:
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

    def replace_choices(self, choices: Mapping[str, Choice], name: str = "") -> Struct:
        fields = {part: field.replace_choices(choices, below(name, part)) for part, field in self.fields.items()}
        return Struct(*self.rules, **fields)

    def uses(self, value: Value, name: str = "") -> Iterator[tuple[str, Value]]:
        for part, field in self.fields.items():
            yield from field.uses(value[part], below(name, part))

    def adapt(self, value: Value, rng: Rng) -> Arch:
        values = value if isinstance(value, Mapping) else {}
        free = {name: field.adapt(values.get(name), rng) for name, field in self.free.items()}
        return self._arch(free, *(group.adapt(values, rng) for group in self.groups))

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
