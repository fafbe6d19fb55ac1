"""Rules between the fields of a Struct.

Fields that rules tie together form a group. Its valid combinations are listed once, so that counting and sampling
stay exact and never retry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from random import Random
from typing import TYPE_CHECKING

from nasformer.errors import UserError
from nasformer.space.arch import Value
from nasformer.space.mutation import Mutation, Path

if TYPE_CHECKING:
    from nasformer.space.nodes import Node, Rng

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

    def sample(self, rng: Rng, like: Values | None = None) -> Values:
        allowed = self.combinations if like is None else self._with_picks_of(like)
        return allowed[rng.randrange(len(allowed))]

    def _with_picks_of(self, like: Values) -> list[dict[str, Value]]:
        """The combinations that take the same options as `like`, wherever both have a OneOf."""
        fixed = dict(self._picks(like))
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


def check_rules(rules: tuple[Rule, ...], fields: dict[str, Node]) -> None:
    for rule in rules:
        if not isinstance(rule, Rule):
            raise UserError(f"Struct got {rule!r} as a rule, expected Rule(fields, test, why)")
        for name in rule.fields:
            if name not in fields:
                raise UserError(f"a rule names the unknown field {name!r}, allowed: {', '.join(fields)}")
