"""Many archs at once through one untrained supernet.

Archs that have the same kind of segment at the same place use the same slice of the weights there, so they can run it
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
from torch.func import functional_call

from nasformer.families.segment import Segment
from nasformer.proxies.hooks import watch
from nasformer.proxies.nuclear import whole_norm
from nasformer.space import Arch
from nasformer.supernet import Supernet
from nasformer.supernet.skeleton import slices

Wanted = Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Trace:
    """A linear layer that several archs ran together.

    Args:
        name: Where it is in the models, such as ``blocks.3.attn.qkv``.
        module: The layer, without weights.
        members: Indices of the archs.
        weight: The slice that all of them use.
        input: [members, tokens, in]
        output: [members, tokens, out], part of the graph.
    """

    name: str
    module: nn.Module
    members: list[int]
    weight: Tensor
    input: Tensor
    output: Tensor


class Lockstep:
    """Runs archs of a space side by side. The supernet's weights must not change meanwhile."""

    def __init__(self, supernet: Supernet) -> None:
        self.supernet = supernet.eval()
        self.shared = {name: weight.detach() for name, weight in supernet.weights.named_parameters()}
        self.norms: dict[Hashable, float] = {}

    def run(self, archs: Sequence[Arch], x: Tensor, wanted: Wanted) -> tuple[list[Tensor], list[Trace]]:
        """The logits of each arch for one input, and the traces of the wanted linear layers."""
        plans = [self.supernet.space.plan(arch) for arch in archs]
        rows, traces = [x] * len(archs), list[Trace]()
        for step in range(max(map(len, plans))):
            together: dict[Segment, list[int]] = defaultdict(list)
            for index, plan in enumerate(plans):
                if step < len(plan):
                    together[plan[step]].append(index)
            for segment, members in together.items():
                inputs = torch.cat([rows[index] for index in members])
                output = self.run_segment(segment, members, inputs, wanted, traces)
                for index, row in zip(members, output.split(len(x)), strict=True):
                    rows[index] = row
        return rows, traces

    def run_segment(
        self, segment: Segment, members: list[int], x: Tensor, wanted: Wanted, traces: list[Trace]
    ) -> Tensor:
        skeleton = self.supernet.skeleton(segment)
        weights = slices(skeleton.parts, [self.shared[f"{segment.name}.{name}"] for name in skeleton.names])
        with watch(skeleton.layer.eval(), wanted) as seen:
            output = functional_call(skeleton.layer, weights, (x,))
        traces += [
            Trace(
                f"{segment.name}.{call.name}",
                call.module,
                members,
                weights[f"{call.name}.weight"],
                call.input.detach(),
                call.output,
            )
            for call in seen
        ]
        return output

    def weight_norm(self, trace: Trace) -> float:
        """The nuclear norm of a slice, computed once: in a search each slice comes up thousands of times."""
        key = (trace.name, trace.weight.shape)
        if key not in self.norms:
            self.norms[key] = whole_norm(trace.weight)
        return self.norms[key]
