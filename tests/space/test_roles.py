"""Roles: topology and size, and mutations that move one of them and leave the other alone."""

from __future__ import annotations

import hashlib
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.space.mutation import MUTATIONS, Gene, Mutation, Role, genes, same_role
from nasformer.space.nodes import Choice, Node, OneOf, Repeat, Struct
from nasformer.space.rules import Rule

from .strategies import roles, seeds, spaces

KERNEL = Choice(3, 5, 7, role="topology")
OPERATOR = OneOf(
    conv=Struct(kernel=KERNEL, width=Choice(16, 32, 64)),
    attention=Struct(width=Choice(32, 64), heads=Choice(2, 4, 8)),
    pool=Struct(),
)
NET = Struct(stem=Choice(8, 16), blocks=Repeat(OPERATOR, depth=Choice(1, 2, 3, 4)))
CERTAIN = Mutation(1, 1, 1)
chances = st.sampled_from([*MUTATIONS.values(), CERTAIN, Mutation(1, 1, 1, "block"), Mutation(0.5, 0.5, 0.5)])


def limited(mutation: Mutation, role: Role) -> Mutation:
    return Mutation(mutation.depth, mutation.width, mutation.block, mutation.unit, role)


def other(role: Role) -> Role:
    return "size" if role == "topology" else "topology"


@given(spaces, seeds, chances, roles)
def test_the_other_role_stays_and_mutants_are_members(space: Node, seed: int, mutation: Mutation, role: Role) -> None:
    rng = Random(seed)
    value = space.sample(rng)
    for _ in range(5):
        mutant = space.mutate(value, rng, limited(mutation, role))
        assert space.validate(mutant) == mutant
        assert same_role(space, value, mutant, other(role))
        value = mutant


@given(spaces, seeds, chances, roles)
def test_children_of_two_that_agree_in_a_role_agree_too(space: Node, seed: int, mutation: Mutation, role: Role) -> None:
    rng = Random(seed)
    a = space.sample(rng)
    b = space.mutate(a, rng, limited(mutation, role))
    child = space.cross(a, b, rng)
    frozen = genes(space, a, other(role)) | genes(space, b, other(role))
    assert genes(space, child, other(role)).items() <= frozen.items()


@given(spaces, spaces, seeds)
def test_adapting_any_value_gives_a_member(space: Node, foreign: Node, seed: int) -> None:
    rng = Random(seed)
    member, other_value = space.sample(rng), foreign.sample(rng)
    assert space.adapt(member, rng) == member
    for value in (other_value, None):
        adapted = space.adapt(value, rng)
        assert space.validate(adapted) == adapted


@given(spaces, seeds)
def test_genes_tell_members_apart_and_have_the_roles_of_the_space(space: Node, seed: int) -> None:
    members = list(space.enumerate())[:60]
    assert len({tuple(space.genes(member)) for member in members}) == len(members)
    value = space.sample(Random(seed))
    both = [genes(space, value, "topology"), genes(space, value, "size")]
    assert sum(map(len, both)) == len(list(space.genes(value)))
    varied = {gene.role for gene in _varied(space)}
    assert varied <= space.roles()


def _varied(space: Node) -> set[Gene]:
    """Genes that differ from the first member's at the same place."""
    first, *others = [{gene.path: gene for gene in space.genes(member)} for member in space.enumerate()]
    return {gene for one in others for path, gene in one.items() if path in first and first[path] != gene}


def test_without_a_role_the_random_numbers_are_used_as_before_there_were_roles() -> None:
    """The digests are those of the code without roles."""
    odd = Rule(("a", "op"), lambda a, op: a > 1 or "conv" in op, "either large or a convolution")
    operator = OneOf(
        conv=Struct(kernel=Choice(3, 5, 7)),
        local=Struct(kernel=Choice(3, 5, 7), heads=Choice(4, 8)),
        axial=Struct(heads=Choice(4, 8)),
    )
    block = Struct(op=operator, inner=Repeat(Choice(1, 2, 3), depth=Choice(0, 1, 2)))
    space = Struct(
        odd,
        width=Choice(1, 2, 3),
        a=Choice(1, 2, 3),
        op=operator,
        blocks=Repeat(block, depth=Choice(1, 2, 3)),
    )
    every = [*MUTATIONS.values(), CERTAIN, Mutation(1, 1, 1, "block"), Mutation(0.5, 0.5, 0.5)]
    assert [digest(space, mutation) for mutation in every] == [
        "9f15d82fd7c014ae",
        "e8f661c61fdb5b28",
        "eb0666f31ee98665",
        "f8fcd5a2d2057078",
        "edae7e5cb36dad80",
    ]


def digest(space: Node, mutation: Mutation) -> str:
    rng = Random(0)
    arch, lines = space.sample(rng), []
    for _ in range(200):
        arch = space.mutate(arch, rng, mutation)
        lines.append(arch.to_json())
    return hashlib.sha256("\n".join([*lines, str(rng.random())]).encode()).hexdigest()[:16]


def test_roles_by_default_and_by_name() -> None:
    assert (Choice(1).role, OneOf(a=Struct()).role) == ("size", "topology")
    assert repr(Choice(1, 2)) == "Choice(1, 2)"
    assert repr(KERNEL) == "Choice(3, 5, 7, role='topology')"
    sized = OneOf(role=Struct(), size=Struct()).with_role("size")
    assert sized.role == "size"
    assert repr(sized) == "OneOf(role=Struct(), size=Struct()).with_role('size')"
    depths = Repeat(Choice(1, 2), depth=Choice(1, 2, role="topology"))
    assert depths.roles() == {"topology", "size"}
    assert NET.roles() == {"topology", "size"}
    assert Struct(a=Choice(1, role="topology"), b=OneOf(only=Choice(1, 2))).roles() == {"size"}
    assert Repeat(KERNEL, depth=Choice(0)).roles() == set()


def test_with_role_keeps_the_class_and_the_original() -> None:
    class Special(OneOf):
        pass

    plain = Special(a=Struct())
    assert type(plain.with_role("size")) is Special
    assert plain.role == "topology"


@pytest.mark.parametrize(
    "define",
    [
        lambda: Choice(1, 2, role="shape"),  # type: ignore[arg-type]
        lambda: OneOf(a=Struct()).with_role("shape"),  # type: ignore[arg-type]
        lambda: Mutation(0, 0, 0, role="shape"),  # type: ignore[arg-type]
    ],
)
def test_unknown_roles_are_refused(define: Any) -> None:
    with pytest.raises(UserError, match="the role 'shape', allowed: 'topology', 'size'"):
        define()


def mutants(value: dict[str, Any], role: Role, times: int = 300) -> set[Arch]:
    rng, arch = Random(0), NET.validate(value)
    return {NET.mutate(arch, rng, limited(CERTAIN, role)) for _ in range(times)}


def test_another_option_takes_over_what_it_has_by_the_same_name() -> None:
    blocks = [{"conv": {"kernel": 3, "width": 64}}]
    results = {arch.blocks[0] for arch in mutants({"stem": 8, "blocks": blocks}, "topology")}
    assert results == {
        *(Arch(conv=Arch(kernel=kernel, width=64)) for kernel in (3, 5, 7)),
        *(Arch(attention=Arch(width=64, heads=heads)) for heads in (2, 4, 8)),
        Arch(pool=Arch()),
    }


def test_what_another_option_does_not_allow_is_drawn() -> None:
    blocks = [{"conv": {"kernel": 3, "width": 16}}]
    results = {arch.blocks[0] for arch in mutants({"stem": 8, "blocks": blocks}, "topology")}
    assert {block.attention.width for block in results if "attention" in block} == {32, 64}


def test_adapting_goes_into_structs_lists_and_options() -> None:
    inner = OneOf(thin=Struct(ratio=Choice(1, 2)), wide=Struct(ratio=Choice(2, 3)))
    old = Struct(mlp=Struct(ratio=Choice(1, 2, 3), bias=Choice(True, False)), stack=Repeat(inner, depth=Choice(2)))
    new = Struct(
        mlp=Struct(ratio=Choice(2, 3), drop=Choice(0.1)),
        stack=Repeat(inner, depth=Choice(1, 2, 3)),
        long=Repeat(Choice(1), depth=Choice(3)),
    )
    value = old.validate({"mlp": {"ratio": 3, "bias": True}, "stack": [{"thin": {"ratio": 1}}, {"wide": {"ratio": 3}}]})
    adapted = new.adapt(value, Random(0))
    assert adapted == Arch(mlp=Arch(ratio=3, drop=0.1), stack=value.stack, long=(1, 1, 1))
    longer = Repeat(Choice(1, 2, 3), depth=Choice(4)).adapt((3, 2), Random(0))
    assert longer == (3, 2, 2, 2)


def test_rules_hold_in_what_is_adapted_and_drawn_values_give_way() -> None:
    rule = Rule(("width", "heads"), lambda width, heads: width % heads == 0, "heads must divide width")
    new = Struct(rule, width=Choice(30, 32), heads=Choice(3, 4, 8))
    results = {new.adapt(Arch(width=32), Random(seed)) for seed in range(40)}
    assert results == {Arch(width=32, heads=4), Arch(width=32, heads=8)}
    clash = {new.adapt(Arch(width=32, heads=3), Random(seed)) for seed in range(40)}
    assert clash == {*results, Arch(width=30, heads=3)}


def test_deeper_copies_the_topology_of_the_last_item() -> None:
    blocks = [{"conv": {"kernel": 3, "width": 16}}, {"conv": {"kernel": 7, "width": 16}}]
    results = mutants({"stem": 8, "blocks": blocks}, "size")
    assert {len(arch.blocks) for arch in results} == {1, 2, 3, 4}
    for arch in results:
        assert [block.conv.kernel for block in arch.blocks] == [3, 7, 7, 7][: len(arch.blocks)]
    assert {arch.blocks[-1].conv.width for arch in results if len(arch.blocks) == 4} == {16, 32, 64}
    assert {arch.stem for arch in results} == {8, 16}


def test_deeper_in_topology_copies_the_sizes() -> None:
    tower = Repeat(Struct(kernel=KERNEL, width=Choice(16, 32)), depth=Choice(0, 1, 3, role="topology"))
    rng, parent = Random(0), (Arch(kernel=3, width=32),)
    results = {tower.mutate(parent, rng, limited(CERTAIN, "topology")) for _ in range(200)}
    assert {len(value) for value in results} == {0, 1, 3}
    assert {item.width for value in results for item in value} == {32}
    assert {value[2].kernel for value in results if len(value) == 3} == {3, 5, 7}


def test_an_empty_list_has_nothing_to_copy() -> None:
    tower = Repeat(KERNEL, depth=Choice(0, 2))
    results = {tower.mutate((), Random(seed), limited(CERTAIN, "size")) for seed in range(60)}
    assert {kernel for value in results for kernel in value} == {3, 5, 7}


def test_a_block_is_redrawn_in_its_role_alone() -> None:
    tower = Repeat(Struct(kernel=KERNEL, width=Choice(16, 32)), depth=Choice(1))
    rng, parent = Random(0), (Arch(kernel=3, width=32),)
    whole = Mutation(0, 0, 0.5, "block", "topology")
    results = [tower.mutate(parent, rng, whole) for _ in range(3000)]
    assert {value[0].width for value in results} == {32}
    assert sum(value != parent for value in results) / 3000 == pytest.approx(0.5 * 2 / 3, abs=0.04)


def test_agreeing_counts_only_what_both_have() -> None:
    short = NET.validate({"stem": 8, "blocks": [{"pool": {}}]})
    long = NET.validate({"stem": 8, "blocks": [{"pool": {}}, {"conv": {"kernel": 3, "width": 16}}]})
    assert same_role(NET, short, long, "topology")
    assert not same_role(NET, short, long, "size")  # the depths
