"""Samplers: the same archs for everyone who asks with the same seed and step, and each as often as it should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct
from nasformer.supernet.samplers import (
    SAMPLERS,
    Sampler,
    hierarchical,
    make_sampler,
    sandwich,
    sandwich_of_sizes,
    sizes,
    uniform,
)
from supernet.toy import Alternatives, toy_esformer, toy_space

MAKERS: dict[str, Callable[[Space, int], Sampler]] = {
    **SAMPLERS,
    "sizes": sizes,
    "sandwich": sandwich,
    "sandwich of sizes": sandwich_of_sizes,
    "sandwich of uniform": partial(sandwich, inner=uniform),
}
# As many configurations an operator as TrioNet has: 6, 48 and 16.
BLOCK = OneOf(
    conv=Struct(kernel=Choice(3, 5, 7), expansion=Choice(1, 2)),
    local=Struct(window=Choice(3, 5, 7), expansion=Choice(2, 4), qk=Choice(1, 2), v=Choice(1, 2), heads=Choice(4, 8)),
    axial=Struct(expansion=Choice(2, 4), qk=Choice(1, 2), v=Choice(1, 2), heads=Choice(4, 8)),
)
TRIO = Space("trio", Alternatives, Struct(dim=Choice(8, 12), blocks=Repeat(BLOCK, depth=Choice(1, 2, 4))))


def operators(arch: Arch) -> list[str]:
    return [name for _, name in TRIO.root.picks(arch)]


def assert_frequencies(found: Iterable[Any], chances: dict[Any, float]) -> None:
    """Each count within 5 standard deviations of a binomial one."""
    counts = Counter(found)
    total = counts.total()
    assert counts.keys() == chances.keys()
    for value, chance in chances.items():
        assert abs(counts[value] - total * chance) < 5 * (total * chance * (1 - chance)) ** 0.5, value


@pytest.mark.parametrize("space", [toy_space(), TRIO], ids=["plain", "alternatives"])
@pytest.mark.parametrize("name", MAKERS)
def test_archs_are_a_function_of_seed_and_step(name: str, space: Space) -> None:
    make = MAKERS[name]
    first = [make(space, 7)(step) for step in range(20)]
    sampler = make(space, 7)
    assert [sampler(step) for step in reversed(range(20))] == first[::-1]  # whatever was asked before
    assert [make(space, 8)(step) for step in range(20)] != first
    assert len(set(map(tuple, first))) > 15
    assert all(space.root.contains(arch) for archs in first for arch in archs)


@pytest.mark.parametrize("name", SAMPLERS)
def test_archs_are_the_same_in_every_process_and_release(name: str) -> None:
    """Python's own hash of a string, for one, is not."""
    (arch,) = SAMPLERS[name](get_space("autoformer-tiny"), 7)(3)
    assert arch.embed_dim == 192
    assert [block.num_heads for block in arch.blocks] == [4, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4]


def test_without_alternatives_both_samplers_are_the_same() -> None:
    space = toy_space()
    assert [uniform(space, 5)(step) for step in range(50)] == [hierarchical(space, 5)(step) for step in range(50)]
    assert [uniform(TRIO, 5)(step) for step in range(50)] != [hierarchical(TRIO, 5)(step) for step in range(50)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_one_arch_a_step_with_each_value_as_often(name: str) -> None:
    sampler = SAMPLERS[name](toy_space(), 0)
    drawn = [sampler(step) for step in range(3000)]
    assert all(len(archs) == 1 for archs in drawn)
    archs = [arch for (arch,) in drawn]
    assert_frequencies((len(arch.blocks) for arch in archs), dict.fromkeys((2, 3, 4), 1 / 3))
    assert_frequencies((arch.embed_dim for arch in archs), dict.fromkeys((32, 40, 48), 1 / 3))
    assert_frequencies((arch.blocks[1].num_heads for arch in archs), dict.fromkeys((1, 2, 3), 1 / 3))


@pytest.mark.parametrize(
    ("name", "chances"),
    [
        ("hierarchical", {"conv": 1 / 3, "local": 1 / 3, "axial": 1 / 3}),
        ("uniform", {"conv": 6 / 70, "local": 48 / 70, "axial": 16 / 70}),
    ],
)
def test_operators_are_as_frequent_as_in_theory(name: str, chances: dict[str, float]) -> None:
    sampler = SAMPLERS[name](TRIO, 0)
    archs = [sampler(step)[0] for step in range(6000)]
    assert_frequencies((operator for arch in archs for operator in operators(arch)), chances)  # 14,000 blocks
    assert_frequencies((len(arch.blocks) for arch in archs), dict.fromkeys((1, 2, 4), 1 / 3))
    blocks = [block for arch in archs for block in arch.blocks]
    within = {"conv": 6, "local": 48, "axial": 16}
    chance = {value: chances[operator] / within[operator] for value in BLOCK.enumerate() for operator in value}
    assert_frequencies(blocks, chance)


# The sandwich


@pytest.mark.parametrize("inner", SAMPLERS)
def test_a_sandwich_is_the_largest_the_smallest_and_random_archs_of_the_same_operators(inner: str) -> None:
    sampler = sandwich(TRIO, 3, inner=SAMPLERS[inner], randoms=3)
    for step in range(50):
        largest, smallest, *others = sampler(step)
        fixed = operators(largest)
        assert (len(largest.blocks), len(smallest.blocks), len(others)) == (4, 1, 3)
        assert largest == TRIO.root.largest(largest)
        assert smallest == TRIO.root.smallest(largest)
        for arch in (smallest, *others):
            assert operators(arch) == fixed[: len(arch.blocks)]


def test_the_rest_of_a_sandwich_is_uniform() -> None:
    sampler = sandwich(TRIO, inner=uniform, randoms=2)
    steps = [sampler(step) for step in range(2000)]
    others = [arch for archs in steps for arch in archs[2:]]
    assert_frequencies((len(arch.blocks) for arch in others), dict.fromkeys((1, 2, 4), 1 / 3))
    assert_frequencies((arch.dim for arch in others), {8: 1 / 2, 12: 1 / 2})
    kernels = (block.conv.kernel for arch in others for block in arch.blocks if "conv" in block)
    assert_frequencies(kernels, dict.fromkeys((3, 5, 7), 1 / 3))
    # Operators are drawn once a step, in every place of the deepest arch.
    drawn = (operator for archs in steps for operator in operators(archs[0]))
    assert_frequencies(drawn, {"conv": 6 / 70, "local": 48 / 70, "axial": 16 / 70})
    assert sum(archs[2] != archs[3] for archs in steps) > 1950


def test_without_alternatives_it_is_the_plain_sandwich() -> None:
    space = toy_space()
    sampler = sandwich(space)
    steps = [sampler(step) for step in range(20)]
    assert all(archs[:2] == [space.root.largest(), space.root.smallest()] for archs in steps)
    assert len({arch for archs in steps for arch in archs[2:]}) > 35


def test_alternatives_within_alternatives_are_fixed_as_well() -> None:
    space = toy_esformer()
    for step in range(20):
        largest, *others = sandwich(space)(step)
        fixed = dict(space.root.picks(largest))
        assert all(fixed[path] == name for arch in others for path, name in space.root.picks(arch))


def macs_shares(sampler: Sampler, space: Space, steps: int = 400) -> list[float]:
    """The MACs of the random archs as shares of the largest one's."""
    whole = space.costs(space.root.largest())["macs"]
    random_ones = (arch for step in range(steps) for arch in sampler(step) if arch != space.root.largest())
    return [space.costs(arch)["macs"] / whole for arch in random_ones]


@pytest.mark.parametrize("sampler", [sizes, sandwich_of_sizes])
def test_small_and_large_archs_are_drawn_as_often_as_medium_ones(sampler: Callable[..., Sampler]) -> None:
    space = get_space("timm:deit_tiny_patch16_224")
    plain, even = macs_shares(hierarchical(space), space), macs_shares(sampler(space), space)
    assert sum(share < 0.35 for share in plain) < 0.05 * len(plain)
    for low in (0.2, 0.3, 0.4, 0.5, 0.6):
        assert 0.08 < sum(low <= share < low + 0.1 for share in even) / len(even) < 0.25


def test_a_sandwich_of_sizes_goes_from_small_to_large_with_the_same_operators() -> None:
    space, sampler = get_space("timm:deit_tiny_patch16_224"), sandwich_of_sizes(get_space("timm:deit_tiny_patch16_224"))
    steps = [[space.costs(arch)["macs"] for arch in sampler(step)] for step in range(100)]
    assert all(macs[0] == space.costs(space.root.largest())["macs"] and len(macs) == 4 for macs in steps)
    assert sum(macs[1] < macs[2] < macs[3] for macs in steps) > 80
    for step in range(20):
        largest, *others = sandwich_of_sizes(TRIO)(step)
        assert all(operators(arch) == operators(largest)[: len(arch.blocks)] for arch in others)


def test_the_recipe_names_the_sampler() -> None:
    assert make_sampler(TRIO, "sizes", 0, 4)(9) == sizes(TRIO, 4)(9)
    assert make_sampler(TRIO, "sizes", 3, 4)(9) == sandwich_of_sizes(TRIO, 4, randoms=3)(9)
    for name in SAMPLERS:
        assert make_sampler(TRIO, name, 0, 4)(9) == SAMPLERS[name](TRIO, 4)(9)
        assert make_sampler(TRIO, name, 3, 4)(9) == sandwich(TRIO, 4, inner=SAMPLERS[name], randoms=3)(9)
