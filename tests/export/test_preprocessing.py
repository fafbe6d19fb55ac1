"""Exports carry the preprocessing of evaluation: timm's transform and `predict` give what evaluation gives."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch import Tensor

import tiny
from export.test_source import imported
from nasformer.data.decode import CROP_PCT, Preprocessing
from nasformer.data.files import ImageFiles
from nasformer.data.loaders import Batches, BatchSource
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import open_data
from nasformer.data.streaming import stream_files
from nasformer.errors import UserError
from nasformer.export.bundle import export_model
from nasformer.export.standalone import standalone_source
from nasformer.models.base import Backbone
from nasformer.models.registry import get_space
from nasformer.models.storage import facts_in, load_model, preprocessing_of, save_model
from nasformer.utils.files import read_json, save_tensors, write_json
from nasformer.utils.schema import from_json, to_json

SIZE = 28  # of which timm makes 32, as of 224 256
CLASSES = ("bird", "cat", "dog")
SIDES = [(40, 61), (95, 50), (64, 64), (33, 90), (SIZE, SIZE), (120, 81)]
PLAIN = AugmentOptions(crop="none", hflip=0.0, smoothing=0.0)


def photo(label: int, size: tuple[int, int], seed: int) -> Image.Image:
    """A smooth picture with the pattern of its class in the middle: what a photograph is to a small net."""
    colours = np.random.default_rng(seed).integers(90, 150, (4, 4, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(colours).resize(size, Image.Resampling.BICUBIC)).astype(float)
    x, y = np.meshgrid(*(np.linspace(-1, 1, side) for side in size))
    pixels[..., label] += 40 + 60 * (np.sin(4 * x), np.sin(4 * y), np.cos(4 * np.hypot(x, y)))[label]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("photos"), random.Random(0)
    for part, count in (("train", 24), ("test", 8)):
        for label, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                image = photo(label, rng.choice(SIDES), seed=rng.randrange(10**6))
                image.save(folder / part / name / f"{number}.jpg", quality=90)
    return folder


@pytest.fixture(scope="module")
def files(photos: Path) -> ImageFiles:
    found = open_data(str(photos), holdout=0, img_size=SIZE, quiet=True)
    assert isinstance(found, ImageFiles)
    return found


@pytest.fixture(scope="module")
def memory(files: ImageFiles) -> Batches:
    return Batches(files.decode(), PLAIN, batch_size=24)


@pytest.fixture(scope="module")
def model(memory: Batches) -> Backbone:
    """Trained until it tells the classes apart."""
    space = get_space("autoformer-micro", img_size=SIZE, patch_size=7, num_classes=3, drop_path_rate=0.0)
    torch.manual_seed(0)
    model = space.build(space.root.smallest()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        images, targets = memory.train(step)
        F.cross_entropy(model(images), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def facts_of(batches: BatchSource) -> dict[str, Any]:
    stats = {"mean": list(batches.mean), "std": list(batches.std)}
    return {**stats, "classes": list(batches.classes), "preprocessing": to_json(batches.preprocessing)}


@torch.no_grad()
def evaluated(model: Backbone, batches: BatchSource) -> Tensor:
    return torch.cat([model(images) for images, _ in batches.evaluation("test", 8)])


def opened(files: ImageFiles) -> Iterator[Image.Image]:
    for index in range(len(files.splits.test)):
        with Image.open(files.splits.test.path(index)) as image:
            yield image.convert("RGB")


@torch.no_grad()
def through_timm(folder: Path, files: ImageFiles, **changes: Any) -> Tensor:
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = create_transform(**resolve_data_config(changes, model=network))
    return network(torch.stack([transform(image) for image in opened(files)]))


def test_timm_predicts_what_evaluation_in_memory_predicts(
    model: Backbone, memory: Batches, files: ImageFiles, tmp_path: Path
) -> None:
    logits = evaluated(model, memory)
    assert (logits.argmax(1) == memory.data.test.labels).float().mean() > 0.9
    save_model(model, tmp_path, **facts_of(memory))
    found = through_timm(tmp_path, files)
    assert torch.equal(found.argmax(1), logits.argmax(1))
    spread = float(logits.std())
    assert (found - logits).abs().mean() < 0.02 * spread  # timm rounds the long side and the crop in another way
    without_crop = through_timm(tmp_path, files, crop_pct=1.0)
    assert (without_crop - logits).abs().mean() > 2 * (found - logits).abs().mean()


def test_evaluation_while_streaming_predicts_the_same(model: Backbone, memory: Batches, files: ImageFiles) -> None:
    streamed = Batches(stream_files(files), PLAIN, batch_size=8)
    assert torch.equal(evaluated(model, streamed), evaluated(model, memory))
    assert facts_of(streamed) == facts_of(memory)


@pytest.mark.parametrize("in_chans", [1, 3])
def test_the_standalone_file_prepares_images_as_evaluation_does(photos: Path, in_chans: int, tmp_path: Path) -> None:
    files = open_data(str(photos), holdout=0, img_size=SIZE, in_chans=in_chans, quiet=True)
    assert isinstance(files, ImageFiles)
    batches = Batches(files.decode(), PLAIN, batch_size=8)
    space = get_space("autoformer-micro", img_size=SIZE, patch_size=7, num_classes=3, in_chans=in_chans)
    module = imported(tmp_path, standalone_source(space.build(space.root.smallest()), facts_of(batches)))
    expected = torch.cat([images for images, _ in batches.evaluation("test", 8)])
    found = torch.cat([module.preprocess(files.splits.test.path(index)) for index in range(len(expected))])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_standalone_file_predicts_names_and_probabilities(
    model: Backbone, memory: Batches, files: ImageFiles, tmp_path: Path
) -> None:
    save_tensors(tmp_path / "model.safetensors", model.state_dict())
    module = imported(tmp_path, standalone_source(model, facts_of(memory)))
    network, logits = module.load(), evaluated(model, memory)
    for index, image in enumerate(opened(files)):
        path = Path(files.splits.test.path(index))
        probabilities = dict(zip(CLASSES, logits[index].softmax(0).tolist(), strict=True))
        ranking = sorted(CLASSES, key=lambda name: -probabilities[name])
        for source in (path, str(path), image):
            names, values = zip(*module.predict(source, network), strict=True)
            assert list(names) == ranking
            assert values == pytest.approx([probabilities[name] for name in ranking], abs=1e-5)
    assert module.predict(image) == module.predict(image, network)


def test_config_and_card_carry_it(model: Backbone, memory: Batches, tmp_path: Path) -> None:
    export_model(model, tmp_path / "out", facts_of(memory), formats=[])
    config = read_json(tmp_path / "out" / "config.json")
    expected = Preprocessing((SIZE, SIZE), 3, CROP_PCT, "bicubic", memory.mean, memory.std)
    assert from_json(Preprocessing, config["preprocessing"], "config.json") == expected
    assert preprocessing_of(model.options, facts_in(tmp_path / "out")) == expected
    assert config["pretrained_cfg"]["crop_pct"] == 0.875
    card = (tmp_path / "out" / "README.md").read_text()
    assert "resized to 32 pixels (bicubic), of which the central 28 x 28 are kept" in card


def test_images_that_have_the_right_size_are_not_cropped(tmp_path: Path) -> None:
    for label, name in enumerate(CLASSES):
        (tmp_path / name).mkdir()
        for number in range(5):
            photo(label, (SIZE, SIZE), seed=number).save(tmp_path / name / f"{number}.png")
    for img_size, crop_pct in ((None, 1.0), (SIZE, 1.0), (14, CROP_PCT)):
        found = open_data(str(tmp_path), holdout=0, img_size=img_size, quiet=True)
        assert isinstance(found, ImageFiles)
        assert Batches(found.decode(), PLAIN, batch_size=4).preprocessing.crop_pct == crop_pct
    assert Batches(tiny.DATA, PLAIN, batch_size=4).preprocessing.crop_pct == 1.0


def test_models_of_earlier_versions_say_nothing_of_a_crop(tmp_path: Path) -> None:
    save_model(tiny.supernet().extract(tiny.SMALLEST), tmp_path, mean=[0.5], std=[0.25])
    facts = facts_in(tmp_path)
    assert "preprocessing" not in facts
    assert preprocessing_of(load_model(tmp_path).options, facts) == Preprocessing((8, 8), 1, mean=(0.5,), std=(0.25,))
    assert read_json(tmp_path / "config.json")["pretrained_cfg"]["crop_pct"] == 1.0


def test_damaged_facts_are_named(tmp_path: Path) -> None:
    save_model(tiny.supernet().extract(tiny.SMALLEST), tmp_path)
    damages = (({"crop_pct": "most"}, 'crop_pct is "most", expected a number'), ([], "preprocessing is a list of 0"))
    for damage, message in damages:
        write_json(tmp_path / "config.json", {**read_json(tmp_path / "config.json"), "preprocessing": damage})
        with pytest.raises(UserError, match=f"config.json: {message}"):
            preprocessing_of({"img_size": 8, "in_chans": 1}, facts_in(tmp_path))


def test_timm_resizes_to_the_same_side() -> None:
    for size in range(8, 600):
        for crop_pct in (CROP_PCT, 0.9, 0.95, 1.0):
            known = Preprocessing((size, size), crop_pct=crop_pct)
            assert math.floor(size / known.timm_config()["crop_pct"]) == known.short_side
