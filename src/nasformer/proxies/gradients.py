"""Gradients of the weights, in chunks of the batch, so that memory depends on the model and not on the batch.

In evaluation mode no image sees another, so the gradient of a mean over images is the sum over chunks: exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.proxies.parts import weight_layers
from nasformer.proxies.registry import Inapplicable

# Images at a time. 8 are about 1.5 GiB of activations at 224 pixels in a transformer of 75 million weights; a GPU has
# more memory, and starting many small kernels is what takes its time.
CHUNK = {"cpu": 8, "cuda": 64}


def chunk_size(images: Tensor) -> int:
    return CHUNK.get(images.device.type, CHUNK["cpu"])


def trainable_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of all linear and convolutional layers by name of the layer, ready to be differentiated."""
    weights: dict[str, Tensor] = {name: layer.weight for name, layer in weight_layers(model).items()}
    if not weights:
        raise Inapplicable("the model has neither linear nor convolutional layers")
    for weight in weights.values():
        weight.requires_grad_(True)
    return weights


def cross_entropy_chunks(
    model: nn.Module, images: Tensor, labels: Tensor, chunk: int | None = None
) -> Iterator[Tensor]:
    """Each chunk's share of the mean cross-entropy over the batch; together they are the loss.

    >>> model, images, labels = nn.Flatten(), torch.eye(3), torch.tensor([0, 1, 1])
    >>> shares = list(cross_entropy_chunks(model, images, labels, chunk=2))
    >>> len(shares), torch.isclose(sum(shares), F.cross_entropy(images, labels)).item()
    (2, True)
    """
    chunk = chunk or chunk_size(images)
    for some_images, some_labels in zip(images.split(chunk), labels.split(chunk), strict=True):
        yield F.cross_entropy(model(some_images), some_labels, reduction="sum") / len(labels)


def cross_entropy_gradients(
    model: nn.Module, images: Tensor, labels: Tensor, chunk: int | None = None
) -> dict[str, Tensor]:
    """G = d(mean cross-entropy) / dW by name of the layer; 0 where a layer has no part in the output."""
    weights = trainable_weights(model)
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for loss in cross_entropy_chunks(model, images, labels, chunk):
        for name, gradient in gradients_of(loss, weights).items():
            total[name] += gradient
    return total


def logit_gradients(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """G = d(sum of all logits) / dW by name of the layer."""
    weights = trainable_weights(model)
    return gradients_of(model(images).sum(), weights)


def gradients_of(loss: Tensor, weights: dict[str, Tensor], create_graph: bool = False) -> dict[str, Tensor]:
    """The gradient of a number with respect to each weight."""
    gradients: tuple[Tensor | None, ...] = ()
    if loss.requires_grad:
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise Inapplicable("no gradient reaches any linear or convolutional weight of the model")
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: torch.zeros_like(weight) if gradient is None else gradient for (name, weight), gradient in pairs}


def inner(left: Tensor, right: Tensor) -> float:
    """The sum over all elements of left . right, in double precision."""
    return float(torch.dot(left.detach().flatten().double(), right.detach().flatten().double()))


def finite_or_nan(score: float) -> float:
    """The score, or NaN where it left the range of numbers."""
    return score if math.isfinite(score) else float("nan")
