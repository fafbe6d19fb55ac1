"""The loss: cross-entropy with soft targets, and optionally the top class of a teacher."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.errors import UserError

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def soft_cross_entropy(logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with soft targets; mixing and label smoothing are in the targets already."""
    return F.cross_entropy(logits.float(), targets)


def with_teacher(teacher: nn.Module, weight: float = 0.5, smoothing: float = 0.1) -> Loss:
    """AutoFormer's optional distillation: the teacher's top class is a second, hard label on the same head."""
    teacher.eval().requires_grad_(False)

    def loss(logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            labels = teacher(images).argmax(-1)
        taught = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
        return (1 - weight) * soft_cross_entropy(logits, images, targets) + weight * taught

    return loss


def load_teacher(source: str, num_classes: int, in_chans: int, device: torch.device) -> nn.Module:
    """A model folder of ours, or ``timm:NAME`` or ``timm:NAME:WEIGHTS``, whose weights are a local file.

    Without a file timm's published weights are used, which timm may have to download.
    """
    if source.startswith("timm:"):
        return load_timm(source, num_classes, in_chans).to(device)
    from nasformer.families.storage import load_model

    model = load_model(source)
    if (model.num_classes, model.options["in_chans"]) != (num_classes, in_chans):
        raise UserError(f"teacher {source} is for other classes or channels; give one trained on the same data")
    return model.to(device)


def load_timm(source: str, num_classes: int, in_chans: int) -> nn.Module:
    import timm

    _, name, *weights = source.split(":", 2)
    where = {"checkpoint_path": weights[0]} if weights else {"pretrained": True}
    try:
        return timm.create_model(name, num_classes=num_classes, in_chans=in_chans, **where)
    except Exception as error:  # an unknown name, no such file, other shapes, no network: timm raises a dozen kinds
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"cannot load the teacher {source} ({reason}); check its name and weights") from error
