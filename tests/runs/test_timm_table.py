"""The list of timm models that reports show, against timm itself."""

from __future__ import annotations

import pytest

from nasformer.runs.baselines import build_timm, count, fitting, timm_table
from nasformer.search.budget import Budget


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_100"])
def test_the_table_is_what_timm_has(name: str) -> None:
    row = timm_table()["models"][name]
    assert count(build_timm(name, 224, 3, 1000, device="meta"), 224, 3) == {
        "params": row["params"],
        "macs": row["macs"],
    }
    (found,) = [one for one in fitting(Budget(), 0, 224, 10, most=1000) if one["name"] == name]
    assert found["params"] == count(build_timm(name, 224, 3, 10, device="meta"), 224, 3)["params"]


def test_costs_that_papers_report() -> None:
    models = timm_table()["models"]
    assert models["resnet50"]["params"] == 25_557_032
    assert models["resnet50"]["macs"] == pytest.approx(4.1e9, rel=0.01)
    assert models["deit_tiny_patch16_224"]["macs"] == pytest.approx(1.26e9, rel=0.01)
    assert len(models) >= 60


def test_only_what_fits_and_the_nearest_first() -> None:
    budget = Budget(min_params=4_000_000, max_params=8_000_000, max_macs=1_300_000_000)
    found = fitting(budget, 5_700_000, 224, 1000)
    assert len(found) > 5
    assert all(budget.fits(row) for row in found)
    distances = [abs(row["params"] - 5_700_000) for row in found]
    assert distances == sorted(distances)
    everything = {row["name"] for row in fitting(Budget(), 0, 224, 1000, most=1000)}
    assert everything == set(timm_table()["models"])
    assert fitting(Budget(max_params=1000), 1000, 224, 1000) == []


def test_smaller_images_cost_less_by_their_area() -> None:
    large, small = (fitting(Budget(), 11_000_000, size, 1000, most=1)[0] for size in (224, 112))
    assert small["macs"] == round(large["macs"] / 4)


def test_limits_that_are_not_known_of_them_are_let_be() -> None:
    assert fitting(Budget(max_params=6_000_000, max_latency_ms=5.0), 5_000_000, 224, 1000)
