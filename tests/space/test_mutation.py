"""Mutation happens at the stated rates and reads its numbers; crossover takes whole blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.space.mutation import MUTATIONS, Mutation, parse_mutation
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct

# Choices so wide that a redraw hardly ever gives the old value: rates of change are then rates of redraw.
WIDE = Choice(*range(10_000))
SPACE = Struct(width=WIDE, blocks=Repeat(Struct(a=WIDE, b=WIDE), depth=Choice(*range(3, 103))))
TRIALS = 4000


PARENT = SPACE.validate({"width": 5, "blocks": [{"a": 6, "b": 7}] * 3})


@cache
def children(mutation: Mutation) -> list[Arch]:
    rng = Random(1)
    return [SPACE.mutate(PARENT, rng, mutation) for _ in range(TRIALS)]


def rate(mutation: Mutation, changed: Callable[[Arch, Arch], Any]) -> float:
    return sum(bool(changed(PARENT, child)) for child in children(mutation)) / TRIALS


def near(expected: float) -> Any:
    return pytest.approx(expected, abs=4 * (expected * (1 - expected) / TRIALS) ** 0.5 + 0.005)


@pytest.mark.parametrize("name", ["code", "paper"])
def test_rates_of_depth_and_width(name: str) -> None:
    mutation = MUTATIONS[name]
    assert rate(mutation, lambda old, new: old.width != new.width) == near(mutation.width)
    assert rate(mutation, lambda old, new: len(old.blocks) != len(new.blocks)) == near(mutation.depth)


def test_unit_gene_redraws_genes_independently() -> None:
    mutation = Mutation(0.4, 0.4, 0.2, "gene")
    assert rate(mutation, lambda old, new: old.blocks[1].a != new.blocks[1].a) == near(0.2)
    assert rate(mutation, lambda old, new: old.blocks[1].b != new.blocks[1].b) == near(0.2)
    both = rate(mutation, lambda old, new: new.blocks[1].a != 6 and new.blocks[1].b != 7)
    assert both == near(0.04)


def test_unit_block_redraws_whole_blocks() -> None:
    mutation = Mutation(0.2, 0.2, 0.4, "block")
    assert rate(mutation, lambda old, new: new.blocks[2].a != 6) == near(0.4)
    assert rate(mutation, lambda old, new: new.blocks[2].a != 6 and new.blocks[2].b != 7) == near(0.4)
    assert rate(mutation, lambda old, new: new.blocks[1] != new.blocks[2]) == near(1 - 0.6**2)


def test_a_redraw_may_give_the_same_value() -> None:
    coin, rng = Choice(0, 1), Random(0)
    changes = sum(coin.mutate(0, rng, Mutation(0, 1, 0)) == 1 for _ in range(TRIALS))
    assert changes / TRIALS == near(0.5)


def test_deeper_appends_and_shallower_truncates() -> None:
    blocks = Repeat(WIDE, depth=Choice(1, 2, 4))
    rng, depths = Random(0), Counter[int]()
    for _ in range(300):
        child = blocks.mutate((8, 9), rng, Mutation(depth=1, width=0, block=0))
        depths[len(child)] += 1
        assert child[:2] == (8, 9)[: len(child)]
    assert set(depths) == {1, 2, 4}


def test_one_of_redraws_its_pick_or_mutates_inside() -> None:
    operator = OneOf(conv=WIDE, local=WIDE)
    inside, outside = Mutation(0, 0, 0.3), Mutation(0, 0.3, 0)
    rng = Random(0)
    for node, parent, mutation in [
        (Repeat(operator, depth=Choice(1)), (Arch(conv=1),), inside),
        (Struct(op=operator), Arch(op=Arch(conv=1)), outside),
    ]:
        children = [node.mutate(parent, rng, mutation) for _ in range(TRIALS)]
        options = Counter(option for child in children for _, option in node.picks(child))
        assert options["local"] / TRIALS == near(0.15)
        # The pick is redrawn, or else the gene inside it.
        assert sum(child != parent for child in children) / TRIALS == near(1 - 0.7 * 0.7)


def test_presets() -> None:
    assert MUTATIONS["code"] == Mutation(depth=0.4, width=0.4, block=0.2, unit="gene")
    assert MUTATIONS["paper"] == Mutation(depth=0.2, width=0.2, block=0.4, unit="block")


@pytest.mark.parametrize(
    ("text", "mutation"),
    [
        ("code", MUTATIONS["code"]),
        ("paper", MUTATIONS["paper"]),
        ("depth=0.2,embed=0.4,gene=0.3", Mutation(0.2, 0.4, 0.3, "gene")),
        (" block = 1 , depth = 0", Mutation(0, 0.4, 1, "block")),
        ("embed=.5", Mutation(0.4, 0.5, 0.2, "gene")),
        (Mutation(0.1, 0.2, 0.3), Mutation(0.1, 0.2, 0.3)),
    ],
)
def test_mutations_are_named_or_numbers(text: str | Mutation, mutation: Mutation) -> None:
    assert parse_mutation(text) == mutation


@pytest.mark.parametrize(
    "text", ["", "bold", "0.3", "depth", "depth=", "depth=a", "width=0.3", "gene=0.1,block=0.2", "depth=0.1,,embed=0.2"]
)
def test_what_is_no_mutation_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        UserError, match=r"one of: code, paper; or probabilities such as depth=0\.2,embed=0\.4,gene=0\.3"
    ):
        parse_mutation(text)


@pytest.mark.parametrize("text", ["depth=1.1", "embed=-0.1", "gene=nan", "block=2"])
def test_probabilities_lie_between_0_and_1(text: str) -> None:
    with pytest.raises(
        UserError, match=rf"mutation {text.partition('=')[0]} is .*, expected a probability between 0 and 1"
    ):
        parse_mutation(text)


@pytest.mark.parametrize("wrong", [{"depth": 1.5}, {"block": -0.1}, {"unit": "layer"}])
def test_bad_mutations_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Mutation(**{"depth": 0.1, "width": 0.1, "block": 0.1, **wrong})


def test_crossover_of_different_depths_takes_whole_blocks() -> None:
    short = SPACE.validate({"width": 1, "blocks": [{"a": 10 + i, "b": 10 + i} for i in range(3)]})
    long = SPACE.validate({"width": 2, "blocks": [{"a": 20 + i, "b": 20 + i} for i in range(5)]})
    rng, seen = Random(0), Counter[tuple[Any, ...]]()
    for _ in range(3200):
        child = SPACE.cross(short, long, rng)
        for layer, block in enumerate(child.blocks):
            assert block in (*short.blocks[layer : layer + 1], long.blocks[layer])
        seen[child.width, *(block.a < 20 for block in child.blocks)] += 1
    # Both widths, both depths, every mix of the three layers that both parents have.
    assert len(seen) == 2 * 2 * 2**3
    assert all(abs(count - 100) < 45 for count in seen.values())  # more than 4 sigma


def test_crossover_takes_an_option_whole() -> None:
    operator = OneOf(conv=Struct(a=WIDE, b=WIDE), local=Struct(a=WIDE))
    a, b = Arch(conv=Arch(a=1, b=1)), Arch(conv=Arch(a=2, b=2))
    rng = Random(0)
    assert {operator.cross(a, b, rng) for _ in range(50)} == {a, b}
