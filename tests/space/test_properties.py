"""What must hold for every space, whatever its nodes."""

from __future__ import annotations

import pickle
from random import Random
from typing import Any

from hypothesis import given, strategies as st

from nasformer.space.arch import Arch
from nasformer.space.mutation import MUTATIONS, Mutation
from nasformer.space.nodes import ByCardinality, Node, Struct, corners

from .strategies import seeds, spaces

mutations = st.sampled_from([*MUTATIONS.values(), Mutation(1, 1, 1, "gene"), Mutation(1, 1, 1, "block")])


def is_member(space: Node, value: Any) -> bool:
    """A valid value that is already in the canonical form."""
    return space.validate(value) == value and repr(space.validate(value)) == repr(value)


@given(spaces, seeds)
def test_samples_are_members_and_repeat_with_the_seed(space: Node, seed: int) -> None:
    value = space.sample(Random(seed))
    assert is_member(space, value)
    assert space.sample(Random(seed)) == value


@given(spaces, seeds, mutations)
def test_mutants_are_members(space: Node, seed: int, mutation: Mutation) -> None:
    rng = Random(seed)
    value = space.sample(rng)
    for _ in range(5):
        value = space.mutate(value, rng, mutation)
        assert is_member(space, value)


@given(spaces, seeds)
def test_probabilities_of_0_change_nothing(space: Node, seed: int) -> None:
    value = space.sample(Random(seed))
    assert space.mutate(value, Random(seed), Mutation(0, 0, 0)) == value


@given(spaces, seeds)
def test_children_are_members(space: Node, seed: int) -> None:
    rng = Random(seed)
    a, b = space.sample(rng), space.sample(rng)
    assert is_member(space, space.cross(a, b, rng))
    assert space.cross(a, a, rng) == a


@given(spaces)
def test_enumerate_gives_every_member_once(space: Node) -> None:
    members = list(space.enumerate())
    assert len(members) == space.cardinality == len(set(members))
    assert all(is_member(space, member) for member in members)


@given(spaces)
def test_every_member_survives_encoding(space: Node) -> None:
    for member in space.enumerate():
        code = space.encode(member)
        assert len(code) == space.code_length
        assert all(isinstance(number, float) for number in code)
        assert space.decode(code) == member


@given(spaces, st.data())
def test_any_vector_decodes_to_a_member(space: Node, data: st.DataObject) -> None:
    numbers = st.floats(allow_nan=True, allow_infinity=True)
    vector = data.draw(st.lists(numbers, min_size=space.code_length, max_size=space.code_length))
    assert is_member(space, space.decode(vector))


@given(spaces, seeds)
def test_plain_form_and_pickle_give_the_member_back(space: Node, seed: int) -> None:
    root = Struct(body=space)
    arch = root.sample(Random(seed))
    assert root.validate(Arch.from_json(arch.to_json())) == arch
    assert root.validate(arch.to_dict()) == arch
    assert repr(Arch.from_json(arch.to_json())) == repr(arch)
    assert pickle.loads(pickle.dumps(arch)) == arch


@given(spaces)
def test_smallest_and_largest_are_members(space: Node) -> None:
    assert is_member(space, space.smallest())
    assert is_member(space, space.largest())


@given(spaces, seeds)
def test_given_keeps_the_picks(space: Node, seed: int) -> None:
    rng = Random(seed)
    fixed = space.sample(rng)
    for value in (space.smallest(fixed), space.largest(fixed), space.sample(rng, fixed)):
        assert is_member(space, value)
        known = dict(space.picks(fixed))
        assert all(known.get(path, option) == option for path, option in space.picks(value))


@given(spaces)
def test_neighbours_are_other_members_and_the_relation_has_no_duplicates(space: Node) -> None:
    for member in list(space.enumerate())[:50]:
        neighbours = list(space.neighbours(member))
        assert len(set(neighbours)) == len(neighbours)
        assert member not in neighbours
        assert all(is_member(space, neighbour) for neighbour in neighbours)


@given(spaces)
def test_corners_take_every_option_that_any_member_takes(space: Node) -> None:
    every = {pick for member in space.enumerate() for pick in space.picks(member)}
    largest = corners(space)
    assert all(is_member(space, corner) for corner in largest)
    assert {pick for corner in largest for pick in space.picks(corner)} == every
    if not every:
        assert largest == [space.largest()]


@given(spaces, seeds)
def test_what_is_no_member_is_refused(space: Node, seed: int) -> None:
    value = space.sample(Random(seed))
    assert space.contains(value)
    assert not space.contains(object())
    assert not space.contains(None)
    assert not Struct(body=space).contains({"body": value, "extra": 1})


@given(spaces, seeds)
def test_members_of_the_deepest_space_are_members_and_fix_every_pick(space: Node, seed: int) -> None:
    given_arch = space.deepest().sample(Random(seed))
    assert is_member(space, given_arch)
    assert is_member(space, space.sample(ByCardinality(seed)))
    for value in (space.largest(given_arch), space.smallest(given_arch), space.sample(Random(seed), given_arch)):
        assert is_member(space, value)
