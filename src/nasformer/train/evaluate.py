"""Accuracy: of a model, or of an arch with the weights it inherits from a supernet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nasformer.data import BatchSource, Split
from nasformer.space import Arch
from nasformer.train.precision import autocast


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: BatchSource,
    split: Split = "test",
    *,
    arch: Arch | None = None,
    batch_size: int = 512,
    precision: str = "auto",
) -> dict[str, float]:
    """Top-1 and top-5 accuracy (0 to 1) on a split.

    Args:
        arch: Which arch to run, if the model is a supernet.
    """
    model.eval()
    device = next(model.parameters()).device
    top1, top5, count = torch.zeros((), device=device), torch.zeros((), device=device), 0
    for x, labels in batches.evaluation(split, batch_size):
        with autocast(device, precision):
            logits = padded(lambda x: model(x) if arch is None else model(x, arch), x, batch_size)
        ranked = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        top1 += ranked[:, 0].sum()
        top5 += ranked.any(1).sum()
        count += len(labels)
    return {"accuracy": top1.item() / count, "top5": top5.item() / count}


def padded(forward: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """Runs a last, smaller batch at full size on a GPU, where another size would be compiled anew."""
    missing = size - len(x)
    if missing == 0 or not x.is_cuda:
        return forward(x)
    return forward(torch.cat([x, x.new_zeros(missing, *x.shape[1:])]))[: len(x)]


def inherited_accuracy(
    supernet: nn.Module, batches: BatchSource, split: Split = "holdout", precision: str = "auto"
) -> Callable[[Arch], dict[str, float]]:
    """The evaluator of a search: accuracy with inherited weights on images held out of training."""

    def judge(arch: Arch) -> dict[str, float]:
        return {"accuracy": evaluate(supernet, batches, split, arch=arch, precision=precision)["accuracy"]}

    return judge
