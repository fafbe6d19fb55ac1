"""The weightless layer through which all segments of one kind run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor, nn
from torch.func import functional_call

from nasformer.families.segment import Segment
from nasformer.families.sharing import MultiHead, Rule, rule_for
from nasformer.layers.drop_path import set_drop_path

Run = Callable[[Tensor, Sequence[Tensor], Tensor | None], Tensor]


class Part(NamedTuple):
    """One shared tensor of a layer: its name, its rule and its shape; learned, or a statistic of batch norm."""

    name: str
    rule: Rule
    shape: Size
    learned: bool


class Skeleton:
    """A layer without weights: called with the shared weights, it takes its slices of them and runs.

    Slicing happens inside the call, so that a compiled skeleton fuses it with the casts that autocast asks for, and
    its backward writes each full-size gradient once. Batch norm updates its slices of the shared statistics in place.
    """

    def __init__(
        self,
        segment: Segment,
        rules: Mapping[str, Rule | MultiHead],
        device: torch.device,
        compile_options: Mapping[str, Any] | None = None,
    ) -> None:
        with torch.random.fork_rng(devices=[]):  # weights are drawn in vain, and drop path must not notice
            layer = Segment("", *segment.kind).build().to(device)
        options = dict(segment.options)
        self.parts = [
            Part(name, rule_for(name, rules, options), tensor.shape, isinstance(tensor, nn.Parameter))
            for name, tensor in layer.state_dict(keep_vars=True).items()
        ]
        self.names = [part.name for part in self.parts]
        self.device, self.rates = device, dict[float, Tensor]()
        self.stochastic = [name for name, _ in layer.named_buffers() if name.endswith("drop_path.rate")]
        self.layer = without_weights(layer)
        self.runs = {training: self.bind(training, compile_options) for training in (True, False)}

    def __call__(self, x: Tensor, weights: Sequence[Tensor], drop_path: float, training: bool) -> Tensor:
        rate = self.rate(drop_path) if self.stochastic and training else None
        return self.runs[training](x, weights, rate)

    def rate(self, drop_path: float) -> Tensor:
        if drop_path not in self.rates:
            self.rates[drop_path] = torch.tensor(drop_path, device=self.device)
        return self.rates[drop_path]

    def fill(self, weights: Sequence[Tensor], drop_path: float) -> nn.Module:
        """An ordinary layer with copies of its slices: several times faster than building one and drawing weights."""
        layer = deepcopy(self.layer)
        own = {name: tensor.clone() for name, tensor in slices(self.parts, weights).items()}
        learned = {part.name: nn.Parameter(own[part.name]) for part in self.parts if part.learned}
        layer.load_state_dict({**own, **learned}, assign=True)
        set_drop_path(layer, drop_path)
        return layer.requires_grad_()

    def bind(self, training: bool, compile_options: Mapping[str, Any] | None) -> Run:
        layer, parts, stochastic = deepcopy(self.layer).train(training), self.parts, self.stochastic

        def run(x: Tensor, weights: Sequence[Tensor], rate: Tensor | None) -> Tensor:
            tensors = slices(parts, weights)
            if rate is not None:
                tensors |= dict.fromkeys(stochastic, rate)
            # A layer has no weight twice; to look for such takes a sixth of the time that Python takes.
            return functional_call(layer, tensors, (x,), tie_weights=False)

        if compile_options is None:
            return run
        # The compiler keeps its graphs by code object and gives up after a few of them: one object per kind.
        run.__code__ = run.__code__.replace()
        return torch.compile(run, dynamic=False, **compile_options)


def slices(parts: Sequence[Part], weights: Sequence[Tensor]) -> dict[str, Tensor]:
    return {part.name: part.rule(weight, part.shape) for part, weight in zip(parts, weights, strict=True)}


def without_weights(layer: nn.Module) -> nn.Module:
    """The layer with all that is shared on the meta device; constants such as index tables stay."""
    for module in layer.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.to("meta")
    return layer
