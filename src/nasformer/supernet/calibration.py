"""Batch-norm statistics of an arch that inherits its weights from a supernet.

In training, the shared running statistics average over whatever archs were sampled, so they fit none of them. Before
an arch is evaluated or exported, its statistics are estimated on training images. Without batch norm nothing is done.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from nasformer.data.loaders import BatchSource
from nasformer.families.base import Backbone
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet

IMAGES = 2048
BATCH = 256


def recalibrated(supernet: Supernet, arch: Arch, batches: BatchSource, images: int = IMAGES) -> Backbone:
    """The arch as an ordinary model in evaluation mode, with statistics estimated on so many training images."""
    model = supernet.extract(arch).eval()
    recalibrate(model, batches, images)
    return model


@torch.no_grad()
def recalibrate(model: nn.Module, batches: BatchSource, images: int = IMAGES) -> None:
    """Sets the running statistics to their plain average over batches of training images, without augmentation.

    The mode of the model and the momentum of its norms stay as they were; stochastic depth is off meanwhile.
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
    for x in batches.calibration(images, BATCH):
        model(x)
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    model.train(training)
