"""The four nodes one by one: definitions, messages, distributions."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.space.mutation import MUTATIONS
from nasformer.space.nodes import ByCardinality, Choice, OneOf, Repeat, Struct, corners
from nasformer.space.rules import Rule

BLOCK = Struct(num_heads=Choice(3, 4), mlp_ratio=Choice(3.5, 4.0))
TINY = Struct(embed_dim=Choice(192, 216, 240), blocks=Repeat(BLOCK, depth=Choice(12, 13, 14)))
OPERATOR = OneOf(
    conv=Struct(kernel=Choice(3, 5, 7)),
    local=Struct(kernel=Choice(3, 5, 7), heads=Choice(4, 8)),
    axial=Struct(heads=Choice(4, 8)),
)


def changed(**changes: Any) -> dict[str, Any]:
    return {**TINY.smallest().to_dict(), **changes}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((), "at least one"),
        ((4, 3), "must ascend"),
        ((3, 3), "twice"),
        ((4, 4.0), "twice"),
        (([3, 4],), "not scalars"),
        ((3, None), "not scalars"),
        ((1.0, float("inf")), "not finite"),
        ((float("nan"),), "not finite"),
    ],
)
def test_bad_choices_fail_at_definition(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Choice(*values)


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda: Repeat(BLOCK, depth=3), "depth=Choice"),  # type: ignore[arg-type]
        (lambda: Repeat(BLOCK, depth=Choice(-1, 2)), "none below 0"),
        (lambda: Repeat(BLOCK, depth=Choice(1.5)), "whole numbers"),
        (lambda: Repeat(BLOCK, depth=Choice(False, True)), "whole numbers"),
        (lambda: Repeat(12, depth=Choice(1)), "expected a node"),  # type: ignore[arg-type]
        (lambda: OneOf(), "at least one"),
        (lambda: OneOf(conv=3), "expected a node"),  # type: ignore[arg-type]
        (lambda: Struct(embed_dim=192), r"expected a node such as Choice\(192\)"),  # type: ignore[arg-type]
        (lambda: Struct(items=Choice(1)), "'items'.*choose another name"),
    ],
)
def test_bad_nodes_fail_at_definition(define: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        define()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (changed(embed_dim=200), "arch.embed_dim is 200, allowed: 192, 216, 240"),
        (changed(embed_dim="192"), "arch.embed_dim is '192', allowed: 192, 216, 240"),
        (changed(embed_dim=[192]), "arch.embed_dim is [192], allowed: 192, 216, 240"),
        (changed(blocks=[BLOCK.smallest()] * 11), "arch.blocks has 11 items, allowed: 12, 13, 14"),
        (changed(blocks=12), "arch.blocks is 12, expected a list of 12, 13, 14 items"),
        (
            changed(blocks=[*[BLOCK.smallest()] * 11, {"num_heads": 5, "mlp_ratio": 4}]),
            "arch.blocks[11].num_heads is 5, allowed: 3, 4",
        ),
        (
            changed(blocks=[{"num_heads": 3}] * 12),
            "arch.blocks[0].mlp_ratio is missing, expected the fields: num_heads, mlp_ratio",
        ),
        (changed(depth=12), "arch has the unknown field 'depth', allowed: embed_dim, blocks"),
        ([192], "arch is [192], expected the fields: embed_dim, blocks"),
    ],
)
def test_validation_names_field_and_allowed_values(value: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        TINY.validate(value)
    assert str(caught.value) == message


def test_one_of_validation() -> None:
    assert OPERATOR.validate({"axial": {"heads": 4.0}}) == Arch(axial=Arch(heads=4))
    for value, message in [
        ({"pool": {}}, "arch has the unknown option 'pool', allowed: conv, local, axial"),
        ({"conv": {"kernel": 4}}, "arch.conv.kernel is 4, allowed: 3, 5, 7"),
        ({}, "arch is {}, expected exactly one of the options: conv, local, axial"),
        ("conv", "arch is 'conv', expected exactly one of the options: conv, local, axial"),
    ]:
        with pytest.raises(UserError) as caught:
            OPERATOR.validate(value)
        assert str(caught.value) == message


def test_validate_returns_the_scalars_of_the_space() -> None:
    arch = TINY.validate(changed(embed_dim=216.0, blocks=[{"mlp_ratio": 4, "num_heads": 3.0}] * 12))
    assert type(arch.embed_dim) is int
    assert type(arch.blocks[0].mlp_ratio) is float
    assert list(arch.blocks[0]) == ["num_heads", "mlp_ratio"]


def test_true_is_not_one() -> None:
    assert not Choice(1, 2).contains(True)
    assert not Choice(True, False).contains(1)
    assert Choice(True, False).validate(False) is False


def test_autoformer_tiny_numbers() -> None:
    assert TINY.cardinality == 3 * (4**12 + 4**13 + 4**14)
    assert TINY.code_length == 1 + 1 + 14 * 2
    assert TINY.smallest().embed_dim == 192
    assert TINY.largest().blocks == (Arch(num_heads=4, mlp_ratio=4.0),) * 14
    code = TINY.encode(TINY.smallest())
    assert code == [0.0, 0.0] + [0.0] * 24 + [-1.0] * 4


def test_repr_is_the_declaration() -> None:
    assert repr(eval(repr(TINY))) == repr(TINY)
    assert repr(eval(repr(OPERATOR))) == repr(OPERATOR)


def test_decode_refuses_a_wrong_length() -> None:
    with pytest.raises(UserError, match="has 3 numbers, expected 30"):
        TINY.decode([0, 0, 0])


def test_encode_refuses_what_is_no_member() -> None:
    with pytest.raises(UserError, match="allowed: 3, 5"):
        Choice(3, 5).encode(4)


def test_decode_rounds_and_clips() -> None:
    heads = Choice(3, 4, 6)
    assert [heads.decode([x]) for x in (-7, 0.4, 0.6, 1.4, 99)] == [3, 3, 4, 4, 6]


def test_enumerating_a_huge_space_is_lazy() -> None:
    first, second = islice(TINY.enumerate(), 2)
    assert first == TINY.smallest()
    assert second.blocks[-1] == Arch(num_heads=3, mlp_ratio=4.0)


def test_equal_blocks_of_many_archs_are_stored_once() -> None:
    """Else a search of 100,000 candidates would keep more than a million of them."""
    operators, rng = Repeat(OPERATOR, depth=Choice(4)), Random(0)
    blocks = [block for _ in range(50) for block in TINY.sample(rng).blocks]
    blocks += [block for _ in range(50) for block in TINY.mutate(TINY.smallest(), rng, MUTATIONS["code"]).blocks]
    assert len({id(block) for block in blocks}) == BLOCK.cardinality
    assert len({id(block) for _ in range(50) for block in operators.sample(rng)}) == OPERATOR.cardinality


def test_options_are_drawn_uniformly_whatever_their_size() -> None:
    rng = Random(0)
    counts = Counter(next(iter(OPERATOR.sample(rng))) for _ in range(6000))
    assert set(counts) == {"conv", "local", "axial"}
    assert all(abs(count - 2000) < 160 for count in counts.values())  # 4 sigma


def test_depth_is_drawn_uniformly() -> None:
    rng = Random(0)
    counts = Counter(len(TINY.sample(rng).blocks) for _ in range(6000))
    assert all(abs(counts[depth] - 2000) < 160 for depth in (12, 13, 14))


def test_corners_follow_the_options() -> None:
    space = Struct(
        stem=Choice(16, 32),
        early=Repeat(OneOf(conv=Choice(3, 5), local=Choice(3, 7)), depth=Choice(1, 2)),
        late=OPERATOR,
    )
    assert corners(TINY) == [TINY.largest()]
    assert corners(space) == [
        Arch(stem=32, early=(Arch(conv=5),) * 2, late=Arch(conv=Arch(kernel=7))),
        Arch(stem=32, early=(Arch(local=7),) * 2, late=Arch(local=Arch(kernel=7, heads=8))),
        Arch(stem=32, early=(Arch(local=7),) * 2, late=Arch(axial=Arch(heads=8))),
    ]


def test_given_fixes_the_operators_for_the_sandwich() -> None:
    space = Repeat(OPERATOR, depth=Choice(1, 2))
    fixed = (Arch(local=Arch(kernel=5, heads=8)), Arch(conv=Arch(kernel=5)))
    assert space.smallest(fixed) == (Arch(local=Arch(kernel=3, heads=4)),)
    assert space.largest(fixed) == (Arch(local=Arch(kernel=7, heads=8)), Arch(conv=Arch(kernel=7)))


def test_a_subclass_may_pick_options_otherwise() -> None:
    class AlwaysConv(OneOf):
        def pick(self, rng: Any) -> str:
            return "conv"

    operator = AlwaysConv(**OPERATOR.options)
    assert {next(iter(operator.sample(Random(seed)))) for seed in range(20)} == {"conv"}


def test_neighbours_of_each_kind() -> None:
    assert list(Choice(1, 2, 3).neighbours(2)) == [1, 3]
    assert list(Choice(1, 2, 3).neighbours(3)) == [2]
    assert list(Repeat(Choice(5, 6), depth=Choice(0, 1, 3)).neighbours((6,))) == [(), (6, 5, 5), (5,)]
    assert list(OPERATOR.neighbours(Arch(conv=Arch(kernel=7)))) == [
        Arch(conv=Arch(kernel=5)),
        Arch(local=Arch(kernel=3, heads=4)),
        Arch(axial=Arch(heads=4)),
    ]


def test_the_deepest_space_has_every_stack_at_its_largest_depth() -> None:
    nested = OneOf(plain=Struct(), stack=Struct(inner=Repeat(Choice(1, 2), depth=Choice(0, 3)))).with_role("size")
    space = Struct(dim=Choice(8, 16), blocks=Repeat(nested, depth=Choice(1, 2, role="topology")))
    deepest = space.deepest()
    assert {len(arch.blocks) for arch in deepest.enumerate()} == {2}
    assert {len(block.stack.inner) for arch in deepest.enumerate() for block in arch.blocks if "stack" in block} == {3}
    assert deepest.cardinality == 2 * (1 + 2**3) ** 2
    assert deepest.roles() == space.roles() - {"topology"}
    assert repr(deepest.fields["blocks"].item).endswith(".with_role('size')")


def test_the_deepest_space_lets_stacks_be_that_a_rule_ties() -> None:
    rule = Rule(("a", "b"), lambda a, b: len(a) + len(b) < 4, "together at most 3 blocks")
    stack = Repeat(Choice(1, 2), depth=Choice(1, 2))
    space = Struct(rule, a=stack, b=stack, c=stack).deepest()
    assert {(len(arch.a), len(arch.b), len(arch.c)) for arch in space.enumerate()} == {(1, 1, 2), (1, 2, 2), (2, 1, 2)}


def test_by_cardinality_make_all_members_equal() -> None:
    """Each OneOf, the nested one as well, picks an option as often as it has members."""
    inner = OneOf(few=Choice(1, 2), many=Choice(*range(6)))
    space, rng, draws = OneOf(one=Choice(0), nested=inner), ByCardinality(3), 9000
    counts = Counter(space.sample(rng) for _ in range(draws))
    assert len(counts) == space.cardinality == 9
    assert all(abs(count - draws / 9) < 5 * (draws * 8 / 81) ** 0.5 for count in counts.values())


def test_by_cardinality_are_ordinary_where_there_is_no_alternative() -> None:
    assert [TINY.sample(ByCardinality(seed)) for seed in range(9)] == [TINY.sample(Random(seed)) for seed in range(9)]
