"""Dimensions: names of choices, other values for them, and which an arch uses."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from hypothesis import given

from nasformer.errors import UserError
from nasformer.space.dimensions import dimensions, uses, with_choices
from nasformer.space.mutation import Gene
from nasformer.space.nodes import Choice, Node, OneOf, Repeat, Struct
from nasformer.space.rules import Rule

from .strategies import seeds, spaces

BLOCK = OneOf(
    conv=Struct(kernel=Choice(3, 5, role="topology")), attention=Struct(heads=Choice(2, 4), ratio=Choice(2.0, 3.0))
)
NET = Struct(
    stage1=Struct(width=Choice(16, 24), blocks=Repeat(BLOCK, depth=Choice(1, 2))),
    act=Choice("relu", "gelu"),
    bias=Choice(False, True),
    scale=Choice(1, 1.5),
)


def test_names_are_paths_in_the_order_of_the_declaration() -> None:
    assert list(dimensions(NET)) == [
        "stage1.width",
        "stage1.blocks.depth",
        "stage1.blocks.conv.kernel",
        "stage1.blocks.attention.heads",
        "stage1.blocks.attention.ratio",
        "act",
        "bias",
        "scale",
    ]


def test_stacks_of_stacks_have_names_of_their_own() -> None:
    stack = Struct(a=Repeat(Repeat(Choice(7, 8), depth=Choice(3)), depth=Choice(1, 2)))
    assert {name: choice.values for name, choice in dimensions(stack).items()} == {
        "a.depth": (1, 2),
        "a.item.depth": (3,),
        "a.item.item": (7, 8),
    }


def test_two_dimensions_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match=r"two dimensions named blocks\.depth"):
        dimensions(Struct(blocks=Repeat(Struct(depth=Choice(1)), depth=Choice(2))))


@given(spaces)
def test_the_same_values_give_the_same_space(space: Node) -> None:
    root = Struct(body=space)
    same = with_choices(root, {name: choice.values for name, choice in dimensions(root).items()})
    assert repr(same) == repr(root)
    assert same.cardinality == root.cardinality


@given(spaces, seeds)
def test_every_gene_but_the_picks_is_a_use_of_a_dimension(space: Node, seed: int) -> None:
    root = Struct(body=space)
    arch = root.sample(Random(seed))
    picks = {path for path, _ in root.picks(arch)}
    # The depth of a stack stands at its path and so does the pick of a OneOf, but never at the same.
    decided = [gene.value for gene in genes(root, arch) if gene.path not in picks]
    used, known = list(uses(root, arch)), dimensions(root)
    assert [value for _, value in used] == decided
    assert all(known[name].contains(value) for name, value in used)


def genes(root: Struct, arch: Any) -> list[Gene]:
    return list(root.genes(arch))


@given(spaces, seeds)
def test_a_dimension_with_the_values_of_a_member_still_has_this_member(space: Node, seed: int) -> None:
    root = Struct(body=space)
    arch = root.sample(Random(seed))
    kept: dict[str, set[Any]] = {}
    for name, value in uses(root, arch):
        kept.setdefault(name, set()).add(value)
    known = dimensions(root)
    narrow = with_choices(root, {name: [v for v in known[name].values if v in kept[name]] for name in kept})
    assert narrow.validate(arch) == arch
    assert narrow.cardinality <= root.cardinality


def test_depth_counts_once_and_items_once_for_each_place() -> None:
    attention = {"attention": {"heads": 2, "ratio": 3.0}}
    arch = NET.validate(
        {
            "stage1": {"width": 16, "blocks": [attention, {"conv": {"kernel": 5}}]},
            "act": "gelu",
            "bias": True,
            "scale": 1,
        }
    )
    assert list(uses(NET, arch)) == [
        ("stage1.width", 16),
        ("stage1.blocks.depth", 2),
        ("stage1.blocks.attention.heads", 2),
        ("stage1.blocks.attention.ratio", 3.0),
        ("stage1.blocks.conv.kernel", 5),
        ("act", "gelu"),
        ("bias", True),
        ("scale", 1),
    ]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("stage1.width", [24, 32.0], (24, 32)),  # whole numbers stay whole
        ("stage1.blocks.attention.ratio", [2, 2.5], (2.0, 2.5)),  # and floats floats
        ("scale", [1.0, 2.0, 2.5], (1, 2, 2.5)),  # where the base has both, as it writes them
        ("act", ["silu"], ("silu",)),
        ("bias", [True], (True,)),
        ("stage1.blocks.depth", [3], (3,)),
    ],
)
def test_values_become_those_of_the_base(name: str, values: list[Any], expected: tuple[Any, ...]) -> None:
    changed = dimensions(with_choices(NET, {name: values}))[name]
    assert [(type(value), value) for value in changed.values] == [(type(value), value) for value in expected]
    assert changed.role == dimensions(NET)[name].role


def test_other_dimensions_and_roles_stay() -> None:
    changed = with_choices(NET, {"stage1.blocks.conv.kernel": [7]})
    before, after = dimensions(NET), dimensions(changed)
    assert repr(after.pop("stage1.blocks.conv.kernel")) == "Choice(7, role='topology')"
    assert all(repr(after[name]) == repr(before[name]) for name in after)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("stage1.widht", [8], "there is no dimension 'stage1.widht'; did you mean stage1.width?"),
        ("depth", [8], "did you mean stage1.blocks.depth?"),
        ("q", [8], "there is no dimension 'q'; there are: stage1.width, "),
        ("stage1.width", [], "stage1.width has no values"),
        ("stage1.width", [24, 16], r"stage1.width: Choice(24, 16) is not in order"),
        ("stage1.width", [16, 16.0], "names a value twice"),
        ("stage1.width", [16.5], "stage1.width has the value 16.5, expected whole numbers like 16,24"),
        ("stage1.width", ["wide"], "stage1.width has the value 'wide', expected numbers like 16,24"),
        ("stage1.width", [True], "stage1.width has the value 'true', expected numbers like 16,24"),
        ("stage1.width", [0, 16], "stage1.width has the value 0, expected numbers above 0"),
        ("stage1.blocks.depth", [0, 1], "stage1.blocks.depth has the value 0, expected numbers above 0"),
        ("scale", [float("inf")], "scale: Choice(inf) has a value that is not finite"),
        ("act", [3], "act has the value '3', expected texts like relu,gelu"),
        ("bias", [1], "bias has the value '1', expected any of false,true"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, values: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        with_choices(NET, {name: values})


def test_rules_stay_and_may_leave_nothing() -> None:
    rule = Rule(("one", "two"), lambda one, two: two % one == 0, "one must divide two")
    heads = Struct(rule, one=Choice(2, 4), two=Choice(2, 4))
    assert [tuple(arch.values()) for arch in with_choices(heads, {"two": [6, 8]}).enumerate()] == [
        (2, 6),
        (2, 8),
        (4, 8),
    ]
    with pytest.raises(UserError, match="no combination of one, two keeps the rules"):
        with_choices(heads, {"two": [5, 7]})


def test_a_subclass_of_one_of_stays_one() -> None:
    class Special(OneOf):
        pass

    operator = with_choices(Struct(op=Special(a=Choice(1)).with_role("size")), {"op.a": [2]}).fields["op"]
    assert isinstance(operator, Special)
    assert operator.role == "size"
