"""What a kind of segment is to a clock: a key for the table, and features for kinds that the table does not hold."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

from nasformer.families.segment import Segment

UNTIMED = frozenset(
    {"num_classes", "stochastic_depth", "layer_scale", "last_gamma", "init_std", "norm_eps", "drop_rate"}
)
"""Options of layers that change the time of a forward pass not at all, or (the number of classes) next to nothing."""


def key_of(segment: Segment) -> str:
    """The kind in words, which is its name in a profile.

    >>> from nasformer.layers.norm import LayerNorm
    >>> key_of(Segment.of("norm", LayerNorm, embed_dim=192))
    'LayerNorm(embed_dim=192)'
    """
    return _key(*segment.kind)  # type: ignore[arg-type]


@lru_cache(maxsize=100_000)
def _key(layer: Any, options: tuple[tuple[str, Hashable], ...]) -> str:
    told = sorted((name, _word(value)) for name, value in options if name not in UNTIMED)
    return f"{layer.__name__}({', '.join(f'{name}={value}' for name, value in told)})"


def _word(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


def group_of(segment: Segment) -> str:
    """Kinds that differ in numbers alone: one law may hold for them."""
    classes = [f"{name}={_word(value)}" for name, value in segment.options if isinstance(value, type | str)]
    return ", ".join([segment.layer.__name__, *classes])


def features_of(segment: Segment) -> dict[str, float]:
    """Logarithms of all that a time may grow with, as a power of it: MACs, parameters and the options in numbers."""
    cost = segment.cost()
    sizes: dict[str, float] = {"macs": cost.macs + cost.position_macs, "params": cost.params}
    sizes |= {name: _size(value) for name, value in segment.options if name not in UNTIMED and _size(value) > 0}
    return {name: math.log1p(size) for name, size in sizes.items()}


def _size(value: Any) -> float:
    """A number, or the product of several, such as the places of a grid; 0 for what is none."""
    if isinstance(value, tuple):
        return math.prod(map(_size, value))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
