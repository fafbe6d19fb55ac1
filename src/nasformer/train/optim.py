"""From gradients to weights: their mean over processes, optimizers, updates of sampled slices only, moving averages.

AutoFormer's paper freezes what a sampled arch does not use; its code lets momentum and decay move it. `FrozenSlices` is
the paper's reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.models.base import Backbone
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World


def reduce_gradients(model: nn.Module, world: World, same: bool = True) -> None:
    """Replaces every gradient by its mean over the processes that train one model.

    With the same arch in all processes, which is how they sample by default, they have the same gradients: only these
    are reduced, in one flat buffer, and no process waits for weights that the arch does not use.

    Args:
        same: Whether all processes have gradients of the same weights. Otherwise one that a process lacks counts as 0,
            and weights without a gradient in any process stay so.
    """
    if world.size == 1:
        return
    if not same:
        fill_gradients(model)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= world.size
    for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(mean.view_as(grad))


def fill_gradients(model: nn.Module) -> None:
    """Adds a gradient of 0 to weights that have one only in other processes."""
    parameters = list(model.parameters())
    used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int64, device=parameters[0].device)
    dist.all_reduce(used, dist.ReduceOp.MAX)
    for parameter, anywhere in zip(parameters, used.tolist(), strict=True):
        if anywhere and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer of a recipe: a group of weights for each learning rate, with decay and without."""
    decaying = decaying_weights(model, recipe)
    decay = 0.0 if decays_by_loss(model, recipe) else recipe.weight_decay
    groups: list[dict[str, Any]] = []
    for scale, named in weights_by_scale(model, recipe.layer_decay).items():
        inside = [weight for name, weight in named.items() if name in decaying]
        others = [weight for name, weight in named.items() if name not in decaying]
        groups.append({"params": inside, "weight_decay": decay, "lr_scale": scale})
        groups.append({"params": others, "weight_decay": 0.0, "lr_scale": scale})
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.peak_lr(), momentum=0.9, nesterov=True)
    fused = next(model.parameters()).device.type == "cuda"
    return torch.optim.AdamW(groups, lr=recipe.peak_lr(), fused=fused)


def weights_by_scale(model: nn.Module, layer_decay: float) -> dict[float, dict[str, nn.Parameter]]:
    """The weights by their share of the learning rate: 1 in the head, less in each layer before it."""
    if layer_decay == 1:
        return {1.0: dict(model.named_parameters())}
    if not isinstance(model, Supernet | Backbone):
        return weights_of_timm(model, layer_decay)
    if isinstance(model, Supernet):
        layers = [f"weights.{segment.name}" for segment in model.space.plan(model.space.root.largest())]
    else:
        layers = model.segment_names
    scales: dict[float, dict[str, nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        position = next((index for index, layer in enumerate(layers) if name.startswith(f"{layer}.")), len(layers) - 1)
        scales.setdefault(layer_decay ** (len(layers) - 1 - position), {})[name] = weight
    return scales


def weights_of_timm(model: Any, layer_decay: float) -> dict[float, dict[str, nn.Parameter]]:
    """`weights_by_scale` for a model of timm, which knows the order of its layers."""
    from timm.models import group_parameters

    if not hasattr(model, "group_matcher"):
        raise UserError("layer_decay needs a model whose layers have an order, ours or timm's; leave it at 1")
    layers = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    scales: dict[float, dict[str, nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        scales.setdefault(layer_decay ** (max(layers.values()) - layers[name]), {})[name] = weight
    return scales


def decaying_weights(model: nn.Module, recipe: Recipe) -> dict[str, nn.Parameter]:
    """The weights that decay at all: no biases, no norms, and nothing that the model or the recipe exempts."""
    of_model: Any = getattr(model, "no_weight_decay", set)
    exempt = (*of_model(), *recipe.no_decay)
    named = model.named_parameters()
    return {name: p for name, p in named if p.ndim > 1 and not any(part in name for part in exempt)}


def decays_by_loss(model: nn.Module, recipe: Recipe) -> bool:
    """Whether a supernet's weights decay through the loss of its largest arch; a single model is its own largest."""
    return recipe.decay == "largest" and isinstance(model, Supernet)


def add_decay(supernet: Supernet, arch: Arch, recipe: Recipe) -> None:
    """Adds the gradients of weight_decay / 2 * |w|^2 over the decaying weights of one arch."""
    decaying = decaying_weights(supernet, recipe)
    slices = [part for name, part in supernet.slices(arch).items() if f"weights.{name}" in decaying]
    # The gradient of the term at each slice is known; the sharing rules carry it to the shared weights.
    torch.autograd.backward(slices, torch._foreach_mul([part.detach() for part in slices], recipe.weight_decay))


class FrozenSlices:
    """An optimizer step that leaves everything outside the sampled slices as it was, momentum included."""

    def __init__(self, supernet: Supernet, optimizer: torch.optim.Optimizer) -> None:
        self.supernet, self.optimizer = supernet, optimizer

    @torch.no_grad()
    def step(self, archs: Iterable[Arch]) -> None:
        masks = self.masks(list(archs))
        before = {weight: [tensor.clone() for tensor in self.tensors(weight)] for weight in masks}
        self.optimizer.step()
        for weight, mask in masks.items():
            # Momentum that this step creates was zero; SGD's would hold the decay of the whole tensor.
            for tensor, old in zip_longest(self.tensors(weight), before[weight], fillvalue=torch.zeros_like(weight)):
                tensor.copy_(torch.where(mask, tensor, old))

    def masks(self, archs: list[Arch]) -> dict[Tensor, Tensor]:
        """For each weight that a sampled arch uses, which of its entries are used."""
        weights = dict(self.supernet.weights.named_parameters())
        with torch.enable_grad():
            slices = [item for arch in archs for item in self.supernet.slices(arch).items()]
            used = [weights[name] for name in dict(slices)]
            # Rules are differentiable: the gradient of a sum over the slices marks their entries.
            marks = torch.autograd.grad(torch.stack([part.sum() for _, part in slices]).sum(), used)
        return {weight: mark != 0 for weight, mark in zip(used, marks, strict=True)}

    def tensors(self, weight: Tensor) -> list[Tensor]:
        state = self.optimizer.state.get(weight, {})
        return [weight, *(t for t in state.values() if isinstance(t, Tensor) and t.shape == weight.shape)]


class MovingAverage:
    """Exponential moving average of weights.

    Keeps ``average = decay * average + (1 - decay) * weight`` for every weight of a model, and for statistics.

    Early on the decay is lower, so that the random start is forgotten: (1 + step) / (10 + step) at most.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: tensor.clone() for name, tensor in averaged_tensors(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(averaged_tensors(model).values()), 1 - decay)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.tensors[name].copy_(tensor)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        for name, tensor in averaged_tensors(model).items():
            tensor.copy_(self.tensors[name])


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and the running statistics of batch norm; its count of batches is no number to average."""
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
