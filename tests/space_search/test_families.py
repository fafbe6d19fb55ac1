"""A step of every family: whatever the samples say, the space that follows is one that can be built."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nasformer.models.registry import get_space, list_spaces
from nasformer.search.options import EvolveOptions
from nasformer.space.arch import Arch
from nasformer.space_search import choices_of, next_space
from space_search.synthetic import samples

SMALL: dict[str, dict[str, Any]] = {
    "autoformer-micro": {"img_size": 8, "patch_size": 4},
    "pit-tiny": {"img_size": 32},
    "esformer-s0": {"img_size": 32},
    "trionet-micro": {"img_size": 32},
    "s3-micro": {},
    "vit-micro": {"img_size": 8, "patch_size": 4},
}


def test_every_family_has_its_turn() -> None:
    families = {space.model.family for space in list_spaces().values()}
    assert {get_space(name).model.family for name in SMALL} == families


@pytest.mark.parametrize("name", SMALL)
def test_what_follows_can_be_built(name: str) -> None:
    space = get_space(name, **SMALL[name])
    rng = random.Random(0)
    luck: dict[Arch, float] = {}

    def error(arch: Arch) -> float:
        return luck.setdefault(arch, rng.uniform(10, 90))

    options = EvolveOptions(samples=60, top=3, min_samples=1, sigma=0.0, tau=1e-9)
    step, following = next_space(space, samples(space, error, 60), options)
    moved = [one for one in step.dimensions.values() if one.shift]
    assert moved
    assert {one: dimension.next for one, dimension in step.dimensions.items()} == choices_of(following)
    assert get_space(following.name, **SMALL[name]).root.cardinality == following.root.cardinality
    for arch in (following.root.smallest(), following.root.largest(), following.sample(0)):
        assert following.build(arch).arch == arch
    for number in range(100):
        assert following.costs(following.sample(1000 + number))["params"] > 0
