"""The check-up of a supernet."""

from __future__ import annotations

import pytest

from nasformer.families.registry import get_space
from nasformer.space.arch import Arch
from nasformer.supernet.health import check_up, depth_and_width, fixed_subnets

SPACE = get_space("autoformer-micro")


def size(arch: Arch) -> int:
    return SPACE.cost(arch).params


def test_larger_is_better_is_healthy() -> None:
    found = check_up(SPACE, lambda arch: size(arch) / 1e6, count=10)
    assert found["healthy"]
    assert found["rank_correlation"] == pytest.approx(1)
    assert found["smallest"] < found["random_mean"] < found["largest"]
    assert [row["name"] for row in found["subnets"]] == ["smallest", "largest", *(f"random {k}" for k in range(10))]


def test_larger_is_worse_is_not() -> None:
    found = check_up(SPACE, lambda arch: 1 - size(arch) / 1e6, count=10)
    assert not found["healthy"]
    assert found["rank_correlation"] == pytest.approx(-1)


def test_subnets_that_are_all_alike_have_no_correlation() -> None:
    found = check_up(SPACE, lambda arch: 0.1, count=5)
    assert found["healthy"]
    assert found["rank_correlation"] is None


def test_it_is_the_same_for_the_same_seed_only() -> None:
    def archs(seed: int) -> list[dict[str, object]]:
        return [row["arch"] for row in check_up(SPACE, size, seed, count=5)["subnets"]]

    assert archs(0) == archs(0) != archs(1)


@pytest.mark.parametrize("name", ["autoformer-micro", "pit-tiny", "esformer-s0", "trionet-small", "s3-micro"])
def test_the_fixed_subnets_of_every_family_have_depth_and_width(name: str) -> None:
    space = get_space(name)
    archs = fixed_subnets(space, seed=3)
    assert archs == fixed_subnets(space, seed=3)
    assert archs["random 0"] != fixed_subnets(space, seed=4)["random 0"]
    params = {name: space.cost(arch).params for name, arch in archs.items()}
    assert params["smallest"] < params["middle"] < params["largest"]
    found = depth_and_width(space, archs)
    for values in found.values():
        by_name = dict(zip(archs, values, strict=True))
        assert by_name["smallest"] == min(values) < by_name["largest"]
