"""Spaces without weights, whose best member is known: the error of an arch is a function of its values."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nasformer.errors import UserError
from nasformer.models.base import Backbone, Segment
from nasformer.models.space import Space
from nasformer.search.problem import Candidate
from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions, uses
from nasformer.space.nodes import Choice, Repeat, Scalar, Struct

Error = Callable[[Arch], float]


class Nothing(Backbone):
    """A family of nets without layers, which cannot be built with more than 60 of width."""

    family = "nothing"

    @classmethod
    def plan(cls, arch: Arch, *, widest: int = 60) -> list[Segment]:
        if arch.get("width", 0) > widest:
            raise UserError(f"a width of {arch.width} is too wide")
        return []

    @classmethod
    def limits(cls, **options: Any) -> Mapping[str, tuple[float | None, float | None]]:
        return {"blocks.window": (None, 10)}


def space(**changes: Sequence[Scalar]) -> Space:
    """Dimensions of all kinds; their values are the defaults, or others by the last part of their name."""
    values: dict[str, Sequence[Scalar]] = {"width": (16, 24, 32), "depth": (2, 3, 4), "heads": (3, 4, 5)}
    values |= {"ratio": (2.0, 2.5, 3.0), "window": (3, 6), "act": ("relu", "gelu"), "fixed": (1,), **changes}
    genes = {name: Choice(*values[name]) for name in ("heads", "ratio", "window")}
    blocks = Repeat(Struct(**genes), depth=Choice(*values["depth"]))
    fields = {name: Choice(*values[name]) for name in ("width", "act", "fixed")}
    return Space("synthetic", Nothing, Struct(blocks=blocks, **fields))


def bowl(space: Space, best: Mapping[str, float], depth: float = 1.0) -> Error:
    """An error that grows with the square of the distance from the best values, in steps of each dimension."""
    known: dict[str, Any] = dimensions(space.root)
    unit = {name: known[name].values[1] - known[name].values[0] for name in best}

    def error(arch: Arch) -> float:
        away: dict[str, list[float]] = {name: [] for name in best}
        for name, value in uses(space.root, arch):
            if name in best:
                away[name].append(((value - best[name]) / unit[name]) ** 2)  # type: ignore[operator]
        return 20.0 + depth * sum(sum(each) / len(each) for each in away.values())

    return error


def samples(space: Space, error: Error, count: int = 400, seed: int = 0) -> list[Candidate]:
    """Random archs with the accuracy that an error in % means."""
    archs = [space.sample(random.Random(f"{seed} {number}")) for number in range(count)]
    return [Candidate(k, 0, "random", (), arch, {"accuracy": 1 - error(arch) / 100}) for k, arch in enumerate(archs)]
