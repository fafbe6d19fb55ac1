"""A segment: one layer of a network, described but not built.

A family turns an arch into a *plan*, a list of segments. Everything else reads the plan: the static model builds its
layers, the supernet gives them slices of its weights, the cost is the sum of theirs, and a block that occurs in a
thousand archs is built, counted and compiled once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import nn

from nasformer.layers.cost import Cost
from nasformer.layers.drop_path import set_drop_path


@dataclass(frozen=True)
class Segment:
    """One layer of a plan.

    Args:
        name: Its name in the model, such as ``blocks.3``.
        layer: Its class, which has a static method `cost` with the constructor's arguments.
        options: The constructor's arguments as items, so that a segment can be hashed.
        drop_path: Stochastic-depth rate; not an option, since it changes neither weights nor cost nor graph.
    """

    name: str
    layer: type[nn.Module]
    options: tuple[tuple[str, Hashable], ...]
    drop_path: float = field(default=0.0, compare=False)

    @classmethod
    def of(cls, name: str, layer: type[nn.Module], drop_path: float = 0.0, **options: Hashable) -> Segment:
        return cls(name, layer, tuple(options.items()), drop_path)

    @property
    def kind(self) -> tuple[type[nn.Module], tuple[tuple[str, Hashable], ...]]:
        """Layer class and options: segments of one kind share skeleton, cost and compiled code."""
        return self.layer, self.options

    def build(self) -> nn.Module:
        module = self.layer(**dict(self.options))
        if self.drop_path:
            set_drop_path(module, self.drop_path)
        return module

    def cost(self) -> Cost:
        return _cost(*self.kind)  # type: ignore[arg-type]


@lru_cache(maxsize=100_000)
def _cost(layer: Any, options: tuple[tuple[str, Hashable], ...]) -> Cost:
    return layer.cost(**dict(options))
