"""Well-known timm models that would fit the budget of a search, so that one sees what it has to beat.

Their costs were counted once (`benchmarks/timm_table.py`), so that a report need not build them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from nasformer.search import Budget

COUNTED = ("params", "macs")
MOST = 12


@cache
def timm_table() -> dict[str, Any]:
    """The version of timm, the image size and number of classes that was counted for, and the models."""
    return json.loads(files("nasformer.baselines").joinpath("timm_table.json").read_text(encoding="utf-8"))


def fitting(
    budget: Budget, params: float, img_size: int, num_classes: int, in_chans: int = 3, most: int = MOST
) -> list[dict[str, Any]]:
    """Models within the limits on parameters and MACs, those of about so many parameters first.

    Parameters are those for this number of classes. MACs at other image sizes than that of the table are estimated:
    they grow with the area. Other limits, such as latency, are not known of them.

    >>> [row["name"] for row in fitting(Budget(max_params=5_000_000, max_macs=200_000_000), 4e6, 224, 1000, most=2)]
    ['mobilenetv4_conv_small', 'efficientvit_b0']
    """
    found = [_row(name, facts, img_size, num_classes) for name, facts in timm_table()["models"].items()]
    limits = {name: ends for name, ends in budget.limits().items() if name in COUNTED}
    inside = [row for row in found if all(_within(row[name], *ends) for name, ends in limits.items())]
    return sorted(inside, key=lambda row: abs(row["params"] - params))[:most]


def _row(name: str, facts: dict[str, int], img_size: int, num_classes: int) -> dict[str, Any]:
    table = timm_table()
    params = facts["params"] + (num_classes - table["num_classes"]) * facts["per_class"]
    return {"name": name, "params": params, "macs": round(facts["macs"] * (img_size / table["img_size"]) ** 2)}


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)
