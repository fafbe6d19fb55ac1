"""Health of a supernet: its fixed subnets, the check-up, and when an alarm is raised and noise is left alone."""

from __future__ import annotations

import math
import random

import pytest

from nasformer.models.registry import get_space
from nasformer.space.arch import Arch
from nasformer.supernet.health import (
    baseline_alarms,
    chance_alarms,
    check_up,
    depth_and_width,
    dimension_alarms,
    extreme_alarms,
    fixed_subnets,
    flip_alarms,
    loss_alarms,
    rank_agreement,
)

SPACE = get_space("autoformer-micro")
SIZES = depth_and_width(SPACE, fixed_subnets(SPACE))


def size(arch: Arch) -> int:
    return SPACE.cost(arch).params


def test_supernet_whose_larger_subnets_are_better_is_healthy() -> None:
    found = check_up(SPACE, lambda arch: size(arch) / 1e6, count=10)
    assert found.healthy
    assert found.rank_correlation == pytest.approx(1)
    assert found.smallest < found.random_mean < found.largest
    assert [subnet.name for subnet in found.subnets] == ["smallest", "largest", *(f"random {k}" for k in range(10))]


def test_supernet_whose_larger_subnets_are_worse_is_not_healthy() -> None:
    found = check_up(SPACE, lambda arch: 1 - size(arch) / 1e6, count=10)
    assert not found.healthy
    assert found.rank_correlation == pytest.approx(-1)


def test_subnets_that_are_all_alike_have_no_correlation() -> None:
    found = check_up(SPACE, lambda arch: 0.1, count=5)
    assert found.healthy
    assert found.rank_correlation is None


def test_check_up_depends_on_the_seed() -> None:
    def archs(seed: int) -> list[dict[str, object]]:
        return [subnet.arch for subnet in check_up(SPACE, size, seed, count=5).subnets]

    assert archs(0) == archs(0) != archs(1)


@pytest.mark.parametrize("name", ["autoformer-micro", "pit-tiny", "esformer-s0", "trionet-small", "s3-micro"])
def test_the_fixed_subnets_of_every_family_have_depth_and_width(name: str) -> None:
    space = get_space(name)
    archs = fixed_subnets(space, seed=3)
    assert list(archs) == ["smallest", "middle", "largest", *(f"random {number}" for number in range(10))]
    assert archs == fixed_subnets(space, seed=3)
    assert archs["random 0"] != fixed_subnets(space, seed=4)["random 0"]
    params = {name: space.cost(arch).params for name, arch in archs.items()}
    assert params["smallest"] < params["middle"] < params["largest"]
    found = depth_and_width(space, archs)
    for values in found.values():
        by_name = dict(zip(archs, values, strict=True))
        assert by_name["smallest"] == min(values) < by_name["largest"]


# Alarms


def falling(lines: int = 50, noise: float = 0.05, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [0.5 + 2 * math.exp(-4 * line / lines) + rng.gauss(0, noise) for line in range(lines)]


@pytest.mark.parametrize("name", ["depth", "width"])
@pytest.mark.parametrize(("sign", "expected"), [(1, []), (-1, ["worse"])])
def test_deeper_or_wider_subnets_that_are_worse_raise_an_alarm(name: str, sign: int, expected: list[str]) -> None:
    largest = max(SIZES[name])
    accuracies = [0.8 + sign * 0.05 * size / largest for size in SIZES[name]]
    found = dimension_alarms({name: SIZES[name]}, accuracies)
    assert [alarm.name for alarm in found] == [name] * len(expected)
    assert all(f"{'deeper' if name == 'depth' else 'wider'} subnets are worse: by" in alarm.finding for alarm in found)


def test_small_differences_raise_no_alarm() -> None:
    largest = max(SIZES["depth"])
    assert dimension_alarms(SIZES, [0.8 - 0.001 * size / largest for size in SIZES["depth"]]) == []
    assert dimension_alarms(SIZES, [0.8] * len(SIZES["depth"])) == []


def test_largest_subnet_worse_than_noise_allows_raises_an_alarm() -> None:
    others = [0.70, 0.72, 0.74, 0.71]
    assert extreme_alarms(0.73, 0.72, others) == []
    assert [alarm.name for alarm in extreme_alarms(0.76, 0.70, others)] == ["extremes"]


def test_ranks_that_flip_late_raise_an_alarm() -> None:
    names = [f"random {number}" for number in range(8)]
    order = {name: place / 10 for place, name in enumerate(names)}
    turned = {name: 1 - value for name, value in order.items()}
    settled = [order, turned, order, order, order]
    assert rank_agreement(settled) == [-1, -1, 1, 1]
    assert flip_alarms(rank_agreement(settled)) == []
    assert [alarm.name for alarm in flip_alarms(rank_agreement([order, turned, order, turned]))] == ["flips"]
    assert flip_alarms(rank_agreement([order, turned])) == []  # two snapshots are too few to judge by
    alike = dict.fromkeys(names, 0.1)
    assert rank_agreement([alike, alike, alike]) == [None, None]
    assert flip_alarms([None, None]) == []


@pytest.mark.parametrize("seed", range(20))
def test_noisy_loss_raises_no_alarm(seed: int) -> None:
    assert loss_alarms(falling(noise=0.1, seed=seed)) == []
    assert loss_alarms(falling(lines=5, seed=seed)) == []


def test_loss_that_jumps_raises_an_alarm() -> None:
    losses = falling()
    losses[30:] = [loss + 1.5 * math.exp(-line / 5) for line, loss in enumerate(losses[30:])]
    (alarm,) = loss_alarms(losses)
    assert alarm.name == "reset"
    assert f"from {losses[29]:.3f} to {losses[30]:.3f} at line 31" in alarm.finding


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_loss_that_is_not_finite_raises_an_alarm(bad: float) -> None:
    assert [alarm.name for alarm in loss_alarms([*falling(), bad])] == ["not finite"]


def test_subnets_that_guess_raise_an_alarm() -> None:
    assert [alarm.name for alarm in chance_alarms(0.11, 0.11, 10)] == ["chance"]
    assert chance_alarms(0.13, 0.13, 10) == []
    assert [alarm.name for alarm in chance_alarms(0.0011, 0.0011, 1000)] == ["chance"]


def test_a_baseline_that_is_better_beyond_noise_raises_an_alarm() -> None:
    (alarm,) = baseline_alarms(0.6, {"timm:resnet18": 0.8, "pixels": 0.61}, images=200)
    assert alarm.finding.startswith("timm:resnet18 is right on 80.00%")
    assert baseline_alarms(0.6, {"timm:resnet18": 0.8}, images=10) == []
    assert baseline_alarms(0.6, {"timm:resnet18": 0.8}, images=None) == []


def test_a_largest_subnet_within_noise_of_guessing_raises_an_alarm() -> None:
    (alarm,) = chance_alarms(0.20, 0.15, 10, images=80)
    assert "within noise of guessing" in alarm.finding
    assert chance_alarms(0.20, 0.15, 10, images=1000) == []
