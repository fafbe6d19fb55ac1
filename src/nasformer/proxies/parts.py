"""Building blocks of proxies: the inputs that they show to a network (`Probe`), and the parts of it that they read.

Parts are found by name and type, in our models and in others': blocks, attention, MLPs, weights, activations.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from nasformer.proxies.registry import Inapplicable
from nasformer.utils.rng import generator

# Probe: the inputs that proxies show to a model, each a pure function of the seed.


@dataclass(frozen=True)
class Probe:
    """A labelled batch, and a seed from which further inputs are drawn.

    >>> probe = noise_probe((3, 8, 8), num_classes=10, batch_size=4, seed=1)
    >>> probe.images.shape, probe.ones().shape, torch.equal(probe.noise("a"), probe.noise("a"))
    (torch.Size([4, 3, 8, 8]), torch.Size([1, 3, 8, 8]), True)

    Args:
        images: Real images where there is data, else noise. All other inputs have their shape and device.
        labels: Their classes; random ones where there is no data.
        seed: What all further randomness of a proxy derives from.
    """

    images: Tensor
    labels: Tensor
    seed: int = 0

    @property
    def device(self) -> torch.device:
        return self.images.device

    def ones(self, batch: int = 1) -> Tensor:
        return torch.ones(batch, *self.images.shape[1:], device=self.device)

    def noise(self, label: str, at_most: int | None = None) -> Tensor:
        """N(0, 1) images, as many as in the batch but no more than `at_most`; others for each label."""
        batch = len(self.images) if at_most is None else min(at_most, len(self.images))
        return torch.randn((batch, *self.images.shape[1:]), generator=self.generator(label)).to(self.device)

    def generator(self, label: str) -> torch.Generator:
        """A generator on the CPU, so that every device sees the same numbers."""
        return generator(self.seed, zlib.crc32(label.encode()))


def noise_probe(
    shape: tuple[int, int, int],
    num_classes: int,
    batch_size: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Probe:
    """The probe of a search without data: N(0, 1) images with uniformly random labels."""
    source = generator(seed, zlib.crc32(b"probe"))
    images = torch.randn(batch_size, *shape, generator=source)
    labels = torch.randint(num_classes, (batch_size,), generator=source)
    return Probe(images.to(device), labels.to(device), seed)


Condition = Callable[[str, nn.Module], bool]
"""Selects modules by name and module."""


class Call(NamedTuple):
    """One call of a layer; input and output are part of the autograd graph."""

    name: str
    module: nn.Module
    input: Tensor
    output: Tensor


@contextmanager
def record_calls(model: nn.Module, condition: Condition) -> Iterator[list[Call]]:
    """Yields a list that fills up with the calls of the layers that fulfil a condition, in the order of execution.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with record_calls(net, lambda name, module: isinstance(module, nn.ReLU)) as calls:
    ...     _ = net(torch.ones(1, 2))
    >>> [call.name for call in calls], calls[0].output.shape
    (['1'], torch.Size([1, 3]))
    """
    calls: list[Call] = []

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, inputs, output: calls.append(Call(name, module, inputs[0], output))

    layers = {name: module for name, module in model.named_modules() if condition(name, module)}
    with hooks(module.register_forward_hook(hook_for(name)) for name, module in layers.items()):
        yield calls


@contextmanager
def hooks(handles: Iterable[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
    """Context that removes hooks at its end."""
    registered = list(handles)
    try:
        yield
    finally:
        for handle in registered:
            handle.remove()


# Blocks: the modules named ``blocks.3`` or ``stages.1.blocks.3``, as we and timm name them.

_BLOCK = re.compile(r"(^|\.)blocks\.\d+$")


def is_block(name: str, module: nn.Module | None = None) -> bool:
    """Whether a module is a block, by the number in its name.

    >>> [is_block(name) for name in ("blocks.3", "stages.1.blocks.3", "blocks.3.mlp", "blocks")]
    [True, True, False, False]
    """
    return _BLOCK.search(name) is not None


def require_blocks(model: nn.Module, least: int = 1) -> int:
    """The number of blocks; raises Inapplicable where there are fewer than `least`."""
    count = sum(is_block(name) for name, _ in model.named_modules())
    if count < least:
        raise Inapplicable(f"the model has {count} modules named blocks.<number>, and at least {least} are needed")
    return count


# Attention and MLP, by the names that timm and we give their linear layers: ``attn.qkv``, ``attn.proj``; ``mlp.fc1``,
# ``mlp.fc2``. The head, convolutions and what lies between stages belong to neither, as TF-TAS has it.


def is_attention(name: str, module: nn.Module) -> bool:
    """Whether a module is a linear layer of attention: of queries, keys and values, or the output projection."""
    return isinstance(module, nn.Linear) and _parent(name).endswith("attn")


def is_mlp(name: str, module: nn.Module) -> bool:
    """Whether a module is a linear layer of the feed-forward half of a block."""
    return isinstance(module, nn.Linear) and _parent(name).endswith("mlp")


def attention_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of attention, by name."""
    return {name: module for name, module in model.named_modules() if is_attention(name, module)}  # type: ignore[misc]


def mlp_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of the feed-forward halves, by name."""
    return {name: module for name, module in model.named_modules() if is_mlp(name, module)}  # type: ignore[misc]


def _parent(name: str) -> str:
    return name.rpartition(".")[0].rpartition(".")[2]


# Weights.

WeightLayer = nn.Linear | nn.Conv2d


def weight_layers(model: nn.Module) -> dict[str, WeightLayer]:
    """All linear and convolutional layers by name, the head included: what "all weights" means in the papers."""
    return {name: module for name, module in model.named_modules() if isinstance(module, WeightLayer)}


Draw = Callable[[Tensor, torch.Generator], None]
"""Fills a weight with random numbers."""


@torch.no_grad()
def reinitialise(model: nn.Module, draw: Draw, source: torch.Generator) -> None:
    """Draws every linear and convolutional weight anew; biases become 0 and gains 1, positions stay."""
    for layer in weight_layers(model).values():
        weight = torch.empty(layer.weight.shape)  # drawn on the CPU: the same numbers on every device
        draw(weight, source)
        layer.weight.copy_(weight)
        if layer.bias is not None:
            layer.bias.zero_()
    reset_gains(model)


@torch.no_grad()
def reset_gains(model: nn.Module) -> None:
    """Sets gains to 1: the weights of norms (and their biases to 0), layer scales and the like.

    Many nets start with gains at or near 0: ConvNeXt's layer scale at 1e-6, the last batch norm of a residual branch
    at 0. That helps training, but it switches the branch off, and a score of the untrained net sees nothing of it.
    """
    for module in model.modules():
        is_norm = isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm)
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith(("gamma", "layer_scale")) or (is_norm and name == "weight"):
                parameter.fill_(1.0)
            elif is_norm:
                parameter.zero_()


def gaussian(weight: Tensor, source: torch.Generator) -> None:
    """Draws N(0, 1) weights, as in Zen-NAS."""
    weight.normal_(generator=source)


def kaiming_fan_out(weight: Tensor, source: torch.Generator) -> None:
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu", generator=source)


def kaiming_fan_in(weight: Tensor, source: torch.Generator) -> None:
    nn.init.kaiming_normal_(weight, mode="fan_in", nonlinearity="relu", generator=source)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


# Activations, by the names of their classes, because timm and others have classes of their own for the same functions.
# All have the sign of their input, more or less; gates (sigmoid, softmax) and tanh are no switches and do not count.

_ACTIVATIONS = frozenset(
    {"relu", "relu6", "leakyrelu", "prelu", "elu", "selu", "celu", "gelu", "gelutanh", "quickgelu", "silu", "swish"}
    | {"mish", "hardmish", "hardswish", "relusquared", "squaredrelu", "starrelu"}
)


NO_ACTIVATIONS = "the model has no activation layers (GELU, ReLU, SiLU ...)"
"""Why a score of activations does not apply."""


def activation_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that switch units on and off."""
    return [module for module in model.modules() if type(module).__name__.lower() in _ACTIVATIONS]


def channel_dim(output: Tensor, after_linear: bool) -> int:
    """Which dimension of an activation holds the channels.

    Tokens [B, N, C] have them last. With four dimensions it depends on which layer made the tensor: [B, C, H, W] comes
    from a convolution, [B, H, W, C] from a linear layer (ConvNeXt, Swin).
    """
    return output.dim() - 1 if after_linear or output.dim() == 3 else 1
