"""Many untrained archs at once.

Archs that have the same kind of layer at the same place have the same weights there (`FreshLayers`), so they can run it
as one batch: 256 nets of AutoFormer-T's space are 12 batches a layer, not 256. What differs between them is kept apart
along the batch dimension, and every arch's own gradient of a linear layer follows from what went in and what came
back: the sum over tokens of (gradient at the output) x (input).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nasformer.families.segment import Segment
from nasformer.proxies.core import Seen, watch
from nasformer.proxies.fresh import FreshLayers
from nasformer.proxies.nuclear import whole_norm
from nasformer.space.arch import Arch

Wanted = Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Trace:
    """A linear layer that several archs ran together.

    Args:
        segment: What it is part of.
        name: Where it is in the models, such as ``blocks.3.attn.qkv``.
        module: The layer.
        members: Indices of the archs.
        weight: What all of them use.
        input: [members, tokens, in]
        output: [members, tokens, out], part of the graph.
    """

    segment: Segment
    name: str
    module: nn.Module
    members: list[int]
    weight: Tensor
    input: Tensor
    output: Tensor


class Lockstep:
    """Runs archs of a space side by side."""

    def __init__(self, fresh: FreshLayers) -> None:
        self.fresh = fresh
        self.norms: dict[Hashable, float] = {}

    def run(self, archs: Sequence[Arch], x: Tensor, wanted: Wanted) -> tuple[list[Tensor], list[Trace]]:
        """The logits of each arch for one input, and the traces of the wanted linear layers."""
        plans = [self.fresh.space.plan(arch) for arch in archs]
        rows, traces = [x] * len(archs), list[Trace]()
        for step in range(max(map(len, plans))):
            together: dict[Segment, list[int]] = defaultdict(list)
            for index, plan in enumerate(plans):
                if step < len(plan):
                    together[plan[step]].append(index)
            for segment, members in together.items():
                layer = self.fresh.layer(segment)
                with watch(layer, wanted) as seen:
                    output = layer(torch.cat([rows[index] for index in members]))
                traces += [traced(segment, members, call) for call in seen]
                for index, row in zip(members, output.split(len(x)), strict=True):
                    rows[index] = row
        return rows, traces

    def weight_norm(self, trace: Trace) -> float:
        """The nuclear norm of a weight, computed once: in a search each comes up thousands of times."""
        key = (trace.segment, trace.name)
        if key not in self.norms:
            self.norms[key] = whole_norm(trace.weight)
        return self.norms[key]


def traced(segment: Segment, members: list[int], call: Seen) -> Trace:
    weight = call.module.weight.detach()  # type: ignore[operator,union-attr]
    name = f"{segment.name}.{call.name}"
    return Trace(segment, name, call.module, members, weight, call.input.detach(), call.output)  # type: ignore[arg-type]
