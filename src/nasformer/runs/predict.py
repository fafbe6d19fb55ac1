"""Predictions of a trained model for image files, prepared as evaluation prepared them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nasformer.data.decode import BadImage, channels_first, check_channels, read_image
from nasformer.data.images import normalise
from nasformer.data.preprocessing import resize_and_crop
from nasformer.errors import UserError
from nasformer.families.base import Backbone
from nasformer.families.storage import class_names, facts_in, load_model, preprocessing_of
from nasformer.runs.data import for_channels
from nasformer.runs.single import model_folder
from nasformer.utils.device import choose_device


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


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of an image, the best first."""

    file: str
    classes: list[str]
    probabilities: list[float]


def predict(
    folder: str | Path, files: Sequence[str | Path], top: int = 5, device: str = "auto"
) -> Iterator[Prediction]:
    """Classifies image files by the model of a run or model folder."""
    path = model_folder(Path(folder))
    model = load_model(path).to(choose_device(device))
    names = class_names(facts_in(path).get("classes"), model, path)
    for file in files:
        x = image_input(Path(file), path, model).x.to(next(model.parameters()).device)
        with torch.inference_mode():
            probabilities, classes = model(x).float().softmax(-1)[0].topk(min(top, len(names)))
        yield Prediction(str(file), [names[index] for index in classes.tolist()], probabilities.tolist())


def image_input(path: Path, folder: Path, model: Backbone) -> ModelInput:
    """An image file, prepared as evaluation prepares it."""
    channels, known = model.options["in_chans"], preprocessing_of(model.options, facts_in(folder))
    if known.mean is None or known.std is None:
        raise UserError(f"{folder} does not say how images are normalised; train or extract the model again")
    if not path.is_file():
        raise UserError(f"there is no image {path}; check the path")
    try:
        image = read_image(str(path), check_channels(channels))
    except BadImage as error:
        raise UserError(f"{path} cannot be read as an image ({error}); give a PNG or JPEG file") from None
    view = resize_and_crop(image, known.img_size, known.crop_pct, known.interpolation)
    pixels = torch.from_numpy(channels_first(view))[None]
    mean, std = (for_channels(values, channels) for values in (known.mean, known.std))
    return ModelInput(normalise(pixels, mean, std), mean, std)
