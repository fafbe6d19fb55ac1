"""Answers of segmentation models in files: tables and pictures of an evaluation, masks of single images."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nasformer.errors import UserError
from nasformer.families.base import Backbone
from nasformer.families.dense import SEGMENT
from nasformer.families.storage import CONFIG, class_names, facts_in, load_model, preprocessing_of
from nasformer.runs.data import for_channels
from nasformer.runs.single import load_for_evaluation, model_folder
from nasformer.tasks.pictures import indexed, overlay
from nasformer.tasks.segment import MaskBatches, Segmentation, read_pixels, segment_image, write_examples
from nasformer.utils.device import choose_device
from nasformer.utils.files import read_json, write_json


def write_segmentation(found: Segmentation, options: Any, out: Path) -> None:
    """Writes evaluation.json, per_class.csv, and the best, median and worst image as PNG: image, truth, answer."""
    out.mkdir(parents=True, exist_ok=True)
    facts = {"model": options.model, "data": options.data, "split": options.split}
    by_class = [asdict(score) for score in found.by_class]
    write_json(out / "evaluation.json", {**facts, **found.scores, "by_class": by_class, "by_image": found.by_image})
    with (out / "per_class.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, by_class[0])
        table.writeheader()
        table.writerows(by_class)
    _, model, batches = load_for_evaluation(Path(options.model), options, options.arch)
    assert isinstance(batches, MaskBatches)
    write_examples(model, batches, found, options.split, out)


@dataclass(frozen=True)
class MaskPrediction:
    """The classes in an image by the share of its pixels, and where its mask and overlay were written."""

    file: str
    shares: dict[str, float]
    mask: str
    overlay: str


def predict_masks(
    folder: str | Path, files: Sequence[str | Path], out: str | Path, device: str = "auto"
) -> Iterator[MaskPrediction]:
    """Segments image files by the model of a run or model folder; masks and overlays go into a folder."""
    path, target = model_folder(Path(folder)), Path(out)
    model = load_model(path).to(choose_device(device))
    names = class_names(facts_in(path).get("classes"), model, path)
    target.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        image = read_pixels(existing(file), model.options["in_chans"])
        answer = segment_image(model, image, *preparation(model, path)).argmax(0).cpu()
        stem = Path(file).stem if [Path(other).stem for other in files].count(Path(file).stem) == 1 else f"{number}"
        mask, picture = target / f"{stem}_mask.png", target / f"{stem}_overlay.png"
        indexed(answer).save(mask)
        overlay(image, answer).save(picture)
        counts = torch.bincount(answer.flatten(), minlength=len(names)).tolist()
        shares = {name: count / answer.numel() for name, count in zip(names, counts, strict=True) if count}
        yield MaskPrediction(
            str(file), dict(sorted(shares.items(), key=lambda item: -item[1])), str(mask), str(picture)
        )


def is_segmentation(folder: str | Path) -> bool:
    """Whether the model of a folder is one for segmentation; False also where there is none."""
    path = Path(folder) / "model" if (Path(folder) / "model").is_dir() else Path(folder)
    return (path / CONFIG).is_file() and str(read_json(path / CONFIG).get("family")).startswith(SEGMENT)


def existing(file: str | Path) -> str:
    if not Path(file).is_file():
        raise UserError(f"there is no image {file}; check the path")
    return str(file)


def preparation(model: Backbone, folder: Path) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """Size, mean and deviation of the images that a model was trained on."""
    known, channels = preprocessing_of(model.options, facts_in(folder)), model.options["in_chans"]
    if known.mean is None or known.std is None:
        raise UserError(f"{folder} does not say how images are normalised; train the model again")
    mean, std = (for_channels(values, channels) for values in (known.mean, known.std))
    return known.img_size[0], mean, std
