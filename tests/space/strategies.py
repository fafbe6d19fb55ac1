"""Random nested spaces for property tests, small enough to enumerate."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

from hypothesis import strategies as st

from nasformer.space.mutation import ROLES
from nasformer.space.nodes import Choice, Node, OneOf, Repeat, Struct
from nasformer.space.rules import Rule

NAMES = ("alpha", "beta", "gamma")
MAX_MEMBERS = 400

seeds = st.integers(0, 2**32 - 1)
roles = st.sampled_from(ROLES)


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    scalars = draw(
        st.one_of(
            st.sets(st.integers(-5, 300), min_size=1, max_size=4).map(sorted),
            st.sets(st.sampled_from([0.25, 0.5, 1.0, 3.5, 4.0]), min_size=1, max_size=3).map(sorted),
            st.lists(st.sampled_from(["gelu", "relu", "none"]), min_size=1, max_size=3, unique=True),
            st.just([True, False]),
        )
    )
    return Choice(*scalars, role=draw(roles))


@st.composite
def repeats(draw: st.DrawFn, items: st.SearchStrategy[Node]) -> Repeat:
    depths = draw(st.sets(st.integers(0, 3), min_size=1, max_size=3))
    return Repeat(draw(items), depth=Choice(*sorted(depths), role=draw(roles)))


@st.composite
def one_ofs(draw: st.DrawFn, items: st.SearchStrategy[Node]) -> OneOf:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return OneOf(**{name: draw(items) for name in names}).with_role(draw(roles))


@st.composite
def structs(draw: st.DrawFn, items: st.SearchStrategy[Node]) -> Struct:
    names = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    fields = {name: draw(items) for name in names}
    tied = draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if names else []
    rules = [random_rule(tuple(tied), fields, Random(draw(seeds)))] if tied else []
    return Struct(*rules, **fields)


def random_rule(names: tuple[str, ...], fields: dict[str, Node], rng: Random) -> Rule:
    """A rule that allows a random half of the combinations of the fields."""
    every: list[Any] = list(product(*(fields[name].enumerate() for name in names)))
    allowed = set(rng.sample(every, (len(every) + 1) // 2))
    return Rule(names, lambda *values: values in allowed, "only a random half is allowed")


def small(node: Node) -> bool:
    return node.cardinality <= MAX_MEMBERS


def nested(items: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    items = items.filter(lambda node: node.cardinality <= 12)  # so that products stay small
    return st.one_of(repeats(items), one_ofs(items), structs(items)).filter(small)


spaces: st.SearchStrategy[Node] = st.recursive(choices(), nested, max_leaves=6)
