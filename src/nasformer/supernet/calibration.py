"""Batch-norm statistics of an arch that inherits its weights from a supernet.

In training, the shared running statistics average over whatever archs were sampled, so they fit none of them. Before
an arch is evaluated or exported, its statistics are estimated on training images. Without batch norm nothing is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from nasformer.data.loaders import BatchSource
from nasformer.models.base import Backbone
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet
from nasformer.utils.device import World

ALONE = World()
IMAGES = 2048
BATCH = 256


def has_batch_norm(space: Space) -> bool:
    """Whether archs of a space need statistics of their own."""
    with torch.random.fork_rng(devices=[]):  # the weights do not matter, and what is random later must not change
        model = space.build(space.root.largest())
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def recalibrated(
    supernet: Supernet, arch: Arch, batches: BatchSource, images: int = IMAGES, world: World = ALONE
) -> Backbone:
    """The arch as an ordinary model in evaluation mode, with statistics estimated on so many training images."""
    model = supernet.extract(arch).eval()
    recalibrate(model, batches, images, world)
    return model


@torch.no_grad()
def recalibrate(model: nn.Module, batches: BatchSource, images: int = IMAGES, world: World = ALONE) -> None:
    """Sets the running statistics to their plain average over batches of training images, without augmentation.

    The mode of the model and the momentum of its norms stay as they were; stochastic depth is off meanwhile.

    Args:
        world: Processes that share the batches, and all call this alike.
    """
    momenta = {module: module.momentum for module in model.modules() if isinstance(module, _BatchNorm)}
    if not momenta:
        return
    training = model.training
    model.eval()
    for norm in momenta:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None  # torch then averages over all batches
    for x in batches.calibration(images, BATCH, *parts(world)):
        model(x)
    if world.size > 1:
        average_statistics(list(momenta), world)
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    model.train(training)


def parts(world: World) -> tuple[tuple[int, int], ...]:
    """The argument of a source of batches that gives this process's part; none where it is alone."""
    return (world.part,) if world.size > 1 else ()


def average_statistics(norms: Sequence[_BatchNorm], world: World) -> None:
    """The plain average over the batches of all processes, each of which has averaged over its own."""
    for norm in norms:
        if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
            continue
        count = norm.num_batches_tracked.to(norm.running_mean)
        sums = world.sum(torch.stack([norm.running_mean, norm.running_var, torch.ones_like(norm.running_mean)]) * count)
        norm.running_mean.copy_(sums[0] / sums[2])
        norm.running_var.copy_(sums[1] / sums[2])
        norm.num_batches_tracked.copy_(sums[2, 0])
