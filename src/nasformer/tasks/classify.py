"""Classification: one class an image. Most of this task is the default of the other packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.data.decode import BadImage, channels_first, check_channels, read_image, resize_and_crop
from nasformer.data.images import normalise
from nasformer.data.loaders import BatchSource, Split
from nasformer.errors import UserError
from nasformer.models.base import Backbone
from nasformer.models.space import Space
from nasformer.models.storage import facts_in, normalisation, preprocessing_of
from nasformer.tasks.options import CLASSIFY, PredictOptions
from nasformer.tasks.registry import Task, TrainedModel, register_task
from nasformer.train.evaluate import CLASSIFICATION, Confusion, find_confusion


@dataclass(frozen=True)
class ModelInput:
    """One image as a model sees it, [1, channels, rows, columns], and how it was normalised."""

    x: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def pixels(self) -> Tensor:
        """[channels, rows, columns] in 0..1."""
        mean, std = torch.tensor([self.mean, self.std]).view(2, -1, 1, 1)
        return (self.x[0].cpu() * std + mean).clamp(0, 1)


def image_input(path: Path, folder: Path, model: Backbone) -> ModelInput:
    """An image file, prepared as evaluation prepares it."""
    preprocessing, (mean, std) = preprocessing_of(model.options, facts_in(folder)), normalisation(model, folder)
    if not path.is_file():
        raise UserError(f"there is no image {path}; check the path")
    try:
        image = read_image(str(path), check_channels(preprocessing.in_chans))
    except BadImage as error:
        raise UserError(f"{path} cannot be read as an image ({error}); give a PNG or JPEG file") from None
    view = resize_and_crop(image, preprocessing.img_size, preprocessing.crop_pct, preprocessing.interpolation)
    pixels = torch.from_numpy(channels_first(view))[None]
    return ModelInput(normalise(pixels, mean, std), mean, std)


@dataclass(frozen=True)
class ClassPrediction:
    """The most probable classes of an image, the best first."""

    file: str
    classes: list[str]
    probabilities: list[float]

    def __str__(self) -> str:
        pairs = zip(self.classes, self.probabilities, strict=True)
        return f"{self.file}: " + ", ".join(f"{name} {probability:.1%}" for name, probability in pairs)


@register_task
class Classify(Task):
    """Classification of whole images."""

    facts, objective = CLASSIFY, CLASSIFICATION

    def space(self, space: Space, options: Any) -> Space:
        return space

    def load_batches(self, *args: Any, **options: Any) -> None:
        """None: images with a label each are opened by `runs/base.py`."""

    def judge(self, model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> Confusion:
        return find_confusion(model, batches, split, classes)

    @torch.inference_mode()
    def predict(self, trained: TrainedModel, options: PredictOptions) -> Iterator[ClassPrediction]:
        names, device = trained.classes, next(trained.model.parameters()).device
        for file in options.images:
            x = image_input(Path(file), trained.folder, trained.model).x.to(device)
            probabilities, classes = trained.model(x).float().softmax(-1)[0].topk(min(options.top, len(names)))
            yield ClassPrediction(file, [names[index] for index in classes.tolist()], probabilities.tolist())
