"""Rules: groups of fields whose combinations are counted, drawn and crossed together."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.space.mutation import Mutation
from nasformer.space.nodes import Choice, OneOf, Struct, corners
from nasformer.space.rules import Rule


def divides(first: str, second: str) -> Rule:
    return Rule((first, second), lambda one, two: two % one == 0, f"{first} must divide {second}")


HEADS = Choice(2, 4, 8)
PIT = Struct(
    divides("heads1", "heads2"),
    divides("heads2", "heads3"),
    base_dim=Choice(16, 24, 32, 40),
    heads1=HEADS,
    heads2=HEADS,
    heads3=HEADS,
    mlp_ratio=Choice(2, 4, 6, 8),
)


def test_pit_has_ten_triples_of_heads() -> None:
    assert PIT.cardinality == 4 * 10 * 4
    assert len({(a.heads1, a.heads2, a.heads3) for a in PIT.enumerate()}) == 10
    assert len(PIT.groups) == 1
    assert list(PIT.sample(Random(0))) == ["base_dim", "heads1", "heads2", "heads3", "mlp_ratio"]


def test_valid_combinations_are_drawn_uniformly() -> None:
    rng = Random(0)
    counts = Counter((a.heads1, a.heads2, a.heads3) for a in (PIT.sample(rng) for _ in range(10_000)))
    assert len(counts) == 10
    assert all(abs(count - 1000) < 120 for count in counts.values())  # 4 sigma


def test_validate_gives_the_reason() -> None:
    with pytest.raises(UserError) as caught:
        PIT.validate({**PIT.smallest(), "heads2": 4})
    assert str(caught.value) == "arch breaks a rule: heads2 must divide heads3 (heads2 is 4, heads3 is 2)"


def test_smallest_and_largest_by_sum_of_positions() -> None:
    not_both_ends = Rule(("a", "b"), lambda a, b: (a, b) not in {(1, 1), (3, 3)}, "not both at the same end")
    space = Struct(not_both_ends, a=Choice(1, 2, 3), b=Choice(1, 2, 3), free=Choice(7, 8))
    assert sum((space.smallest().a, space.smallest().b)) == 3
    assert sum((space.largest().a, space.largest().b)) == 5
    assert (space.smallest().free, space.largest().free) == (7, 8)


def test_a_group_comes_whole_from_one_parent() -> None:
    a, b = PIT.smallest(), PIT.largest()
    rng = Random(0)
    children = {PIT.cross(a, b, rng) for _ in range(100)}
    assert {(c.heads1, c.heads2, c.heads3) for c in children} == {(2, 2, 2), (8, 8, 8)}
    assert len(children) == 2 * 2 * 2  # base_dim and mlp_ratio come on their own


def test_mutation_reaches_every_member_and_keeps_the_rules() -> None:
    rng, arch, seen = Random(0), PIT.smallest(), set()
    for _ in range(5000):
        arch = PIT.validate(PIT.mutate(arch, rng, Mutation(0.5, 0.5, 0.5)))
        seen.add(arch)
    assert len(seen) == PIT.cardinality


def test_when_mutation_finds_nothing_valid_the_parent_stays() -> None:
    equal = Rule(("a", "b"), lambda a, b: a == b == 0, "both must be 0")
    space = Struct(equal, a=Choice(*range(300)), b=Choice(*range(300)))
    assert space.mutate(space.smallest(), Random(0), Mutation(1, 1, 1)) == space.smallest()


def test_decode_moves_to_the_nearest_valid_combination() -> None:
    assert PIT.decode([0, 2, 2, 1, 3]) == Arch(base_dim=16, heads1=8, heads2=8, heads3=8, mlp_ratio=8)
    assert PIT.decode([3, 0, 1, 2, 0]) == Arch(base_dim=40, heads1=2, heads2=4, heads3=8, mlp_ratio=2)


def test_neighbours_keep_the_rules() -> None:
    steps = {(a.heads1, a.heads2, a.heads3) for a in PIT.neighbours(PIT.smallest())}
    assert steps == {(2, 2, 2), (2, 2, 4)}  # the first from steps of base_dim and mlp_ratio


def test_a_rule_shows_what_it_says_and_not_where_its_test_lies() -> None:
    assert repr(divides("a", "b")) == "Rule(fields=('a', 'b'), why='a must divide b')"


def test_separate_rules_make_separate_groups() -> None:
    space = Struct(divides("a", "b"), divides("c", "d"), a=HEADS, b=HEADS, c=HEADS, d=HEADS)
    assert len(space.groups) == 2
    assert space.cardinality == 6 * 6
    bridged = Struct(*space.rules, divides("b", "c"), **space.fields)
    assert len(bridged.groups) == 1
    assert bridged.cardinality == 15


def test_corners_under_a_rule_between_operators() -> None:
    operator = OneOf(conv=Choice(3, 5), attention=Choice(4, 8))
    mixed = Rule(("a", "b"), lambda a, b: set(a) != set(b), "neighbours must use different operators")
    members = corners(Struct(mixed, a=operator, b=operator))
    assert set(members) == {
        Arch(a=Arch(conv=5), b=Arch(attention=8)),
        Arch(a=Arch(attention=8), b=Arch(conv=5)),
    }


def test_given_keeps_the_operators_under_a_rule() -> None:
    operator = OneOf(conv=Choice(3, 5), attention=Choice(4, 8))
    mixed = Rule(("a", "b"), lambda a, b: set(a) != set(b), "neighbours must use different operators")
    space = Struct(mixed, a=operator, b=operator)
    fixed = Arch(a=Arch(conv=3), b=Arch(attention=8))
    assert space.smallest(fixed) == Arch(a=Arch(conv=3), b=Arch(attention=4))
    assert space.largest(fixed) == Arch(a=Arch(conv=5), b=Arch(attention=8))


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda: Struct(divides("a", "z"), a=HEADS), "unknown field 'z', allowed: a"),
        (lambda: Struct(HEADS, a=HEADS), "expected Rule"),  # type: ignore[arg-type]
        (lambda: Rule("ab", lambda a, b: True, "why"), "expected a tuple"),  # type: ignore[arg-type]
        (
            lambda: Struct(Rule(("a",), lambda a: a > 8, "more than 8"), a=HEADS),
            r"no combination.*more than 8",
        ),
        (
            lambda: Struct(divides("a", "b"), a=Choice(*range(1, 402)), b=Choice(*range(1, 402))),
            "160,801 combinations, expected at most 100,000; put the rules on a smaller Struct",
        ),
    ],
)
def test_bad_rules_fail_at_definition(define: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        define()
