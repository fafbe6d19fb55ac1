"""scratch"""
from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nasformer.proxies.codes import activations
from nasformer.proxies.entropic_readings import Reading
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import Inapplicable
from nasformer.proxies.weights import kaiming_fan_out, reinitialise, weight_layers

BATCH = 8
REPEATS = 3

@torch.no_grad()
def entropies(model: nn.Module, probe: Probe, readings: Mapping[str, Reading], batch=BATCH, bn=True, init=kaiming_fan_out, repeats=REPEATS) -> dict[str, float]:
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train(bn)
    source = probe.generator("entropic weights")
    total = dict.fromkeys(readings, 0.0)
    for repeat in range(repeats):
        reinitialise(model, init, source)
        images = probe.noise(f"entropic {repeat}", min(batch, len(probe.images)))
        for name, value in one_pass(model, images, readings).items():
            total[name] += value / repeats
    return total


def one_pass(model: nn.Module, images: Tensor, readings: Mapping[str, Reading]) -> dict[str, float]:
    found: list[list[float]] = []
    after_linear = False

    def remember(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal after_linear
        after_linear = isinstance(module, nn.Linear)

    def measure(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if len(output) != len(images):
            return
        channels = output.dim() - 1 if after_linear or output.dim() == 3 else 1
        found.append([reading(output, channels).item() for reading in readings.values()])

    handles = [layer.register_forward_hook(remember) for layer in weight_layers(model).values()]
    handles += [layer.register_forward_hook(measure) for layer in activations(model)]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise Inapplicable("x")
    return {name: math.fsum(column) / len(found) for name, column in zip(readings, zip(*found))}
