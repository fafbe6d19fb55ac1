"""What several commands need."""

from __future__ import annotations

import json
from typing import Any

from nasformer.cli.options import SpaceConfig
from nasformer.errors import UserError
from nasformer.families.registry import get_space, list_spaces
from nasformer.families.space import Space
from nasformer.latency.finalists import how_measured


def chosen_space(command: SpaceConfig) -> Space:
    if not command.space:
        raise UserError(f"name a space with --space; there are: {', '.join(list_spaces())}")
    return get_space(command.space, **command.model_options())


def print_finalists(summary: dict[str, Any]) -> None:
    """What the best candidates of a search were measured to take, where it had a profile."""
    found = summary.get("latency")
    if not found:
        return
    print(f"latency by {how_measured(found)}")
    for place, one in enumerate(found["finalists"], 1):
        taken = "   <- winner" if one["arch"] == summary["winner"]["arch"] else ""
        memory = one.get("measured_memory_bytes")
        peak = f", {memory / 1e6:.1f} MB" if memory else ""
        told = f"predicted {one['latency_ms']:.4g} ms, measured {one['measured_latency_ms']:.4g} ms{peak}"
        print(f"  {place}. {told}{taken}")
    if found["note"]:
        print(found["note"])


def print_json(content: Any) -> None:
    print(json.dumps(content))
