"""Samplers: the same archs for everyone who asks with the same seed and step."""

from __future__ import annotations

from collections import Counter

import pytest

from nasformer.families import get_space
from nasformer.supernet.samplers import SAMPLERS, uniform
from supernet.toy import toy_space


@pytest.mark.parametrize("name", SAMPLERS)
def test_archs_are_a_function_of_seed_and_step(name: str) -> None:
    space, make = toy_space(), SAMPLERS[name]
    first = [make(space, 7)(step) for step in range(20)]
    sampler = make(space, 7)
    assert [sampler(step) for step in reversed(range(20))] == first[::-1]  # whatever was asked before
    assert [make(space, 8)(step) for step in range(20)] != first
    assert len(set(map(tuple, first))) > 15
    assert all(space.root.contains(arch) for archs in first for arch in archs)


def test_archs_are_the_same_in_every_process_and_release() -> None:
    """Python's own hash of a string, for one, is not."""
    (arch,) = uniform(get_space("autoformer-tiny"), seed=7)(3)
    assert arch.embed_dim == 192
    assert [block.num_heads for block in arch.blocks] == [4, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4]


def test_uniform_takes_one_arch_a_step_with_each_value_as_often() -> None:
    sampler, steps = uniform(toy_space(), seed=0), 3000
    drawn = [sampler(step) for step in range(steps)]
    assert all(len(archs) == 1 for archs in drawn)
    archs = [arch for (arch,) in drawn]
    for values in (
        Counter(len(arch.blocks) for arch in archs),
        Counter(arch.embed_dim for arch in archs),
        Counter(arch.blocks[1].num_heads for arch in archs),
    ):
        # three values each: 5 standard deviations of a binomial count with chance 1/3
        assert len(values) == 3
        assert all(abs(count - steps / 3) < 5 * (steps * 2 / 9) ** 0.5 for count in values.values())
