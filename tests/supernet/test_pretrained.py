"""Pretrained nets as supernets: their weights, and their heads and neurons sorted by importance."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.errors import UserError
from nasformer.models.pretrained import source_space
from nasformer.models.registry import get_space
from nasformer.runs.baselines import count
from nasformer.supernet.importance import (
    find_importance,
    find_units,
    list_importances,
    register_importance,
    sort_by_importance,
    sort_channels,
)
from nasformer.supernet.storage import find_pretrained, supernet_from
from nasformer.supernet.supernet import Supernet

SMALL: dict[str, Any] = {"img_size": 32, "depth": 2, "embed_dim": 64, "num_heads": 4, "num_classes": 7}
NETS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": SMALL,
    "vit_giant_patch14_dinov2": {**SMALL, "img_size": 28, "mlp_ratio": 2.0},
    "swin_tiny_patch4_window7_224": {"img_size": 224, "depths": (1, 1, 1, 1), "num_classes": 7},
}
Batch = list[tuple[Tensor, Tensor | None]]


def pretrained(name: str = "vit_tiny_patch16_224") -> nn.Module:
    torch.manual_seed(1)
    model = timm.create_model(name, **NETS[name]).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, mean=float(weight.ndim == 1) / 2, std=0.1)
    return model


@pytest.fixture
def supernet() -> Supernet:
    return Supernet.from_pretrained(pretrained()).eval()


def batch(supernet: Supernet, labels: bool = True) -> Batch:
    x = torch.randn(4, *supernet.space.image_shape, generator=torch.Generator().manual_seed(0))
    return [(x, torch.tensor([0, 1, 2, 3]) if labels else None)]


@pytest.mark.parametrize("name", NETS)
def test_the_largest_member_computes_what_the_net_computes(name: str) -> None:
    model = pretrained(name)
    supernet = Supernet.from_pretrained(model).eval()
    ((x, _),) = batch(supernet)
    with torch.no_grad():
        assert torch.allclose(supernet(x, supernet.space.root.largest()), model(x), atol=1e-5)


def test_other_classes_and_sizes_get_a_fresh_classifier_and_resampled_positions() -> None:
    model = pretrained()
    supernet = Supernet.from_pretrained(model, num_classes=3, img_size=64)
    logits = supernet(torch.randn(1, 3, 64, 64), supernet.space.root.largest())
    assert logits.shape == (1, 3)
    assert torch.equal(supernet.weights.get_parameter("blocks.0.attn.qkv.weight"), model.blocks[0].attn.qkv.weight)


@pytest.mark.parametrize(
    ("name", "measure", "labels"),
    [
        *(("vit_tiny_patch16_224", measure, True) for measure in list_importances()),
        ("vit_tiny_patch16_224", "gate", False),
        ("vit_giant_patch14_dinov2", "gate", True),
        ("swin_tiny_patch4_window7_224", "gate", True),
    ],
)
def test_sorting_changes_no_output(name: str, measure: str, labels: bool) -> None:
    supernet = Supernet.from_pretrained(pretrained(name)).eval()
    model, batches = supernet.extract(supernet.space.root.largest()).eval(), batch(supernet, labels)
    before = {key: weight.clone() for key, weight in model.state_dict().items()}
    with torch.no_grad():
        expected = model(batches[0][0])
    scores = sort_by_importance(model, batches, measure)
    with torch.no_grad():
        assert torch.allclose(model(batches[0][0]), expected, atol=1e-5)
    assert any(not torch.equal(weight, before[key]) for key, weight in model.state_dict().items())
    assert all(torch.equal(score, score.sort(descending=True).values) for score in scores.values())
    assert {unit.name for unit in find_units(model)} == set(scores)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_giant_patch14_dinov2"])
def test_sorted_channels_change_no_output_and_narrow_nets_are_slices(name: str) -> None:
    model = pretrained(name)
    supernet = Supernet.from_pretrained(model).eval()
    space = supernet.space.with_choices({"embed_dim": [32, 48, 64]})
    largest, batches = supernet.extract(supernet.space.root.largest()).eval(), batch(supernet)
    with torch.no_grad():
        expected = largest(batches[0][0])
    scores = sort_channels(largest, batches)
    assert torch.equal(scores, scores.sort(descending=True).values)
    assert not torch.equal(largest.get_parameter("norm.weight"), supernet.weights.get_parameter("norm.weight"))
    elastic = supernet_from(largest, space).eval()
    narrow = space.arch({**space.root.largest().to_dict(), "embed_dim": 32})
    with torch.no_grad():
        assert torch.allclose(largest(batches[0][0]), expected, atol=1e-4)
        assert torch.equal(elastic(batches[0][0], narrow), elastic.extract(narrow)(batches[0][0]))
    assert space.cost(narrow).params == sum(weight.numel() for weight in elastic.extract(narrow).parameters())


def test_the_gate_gradient_is_that_of_a_gate(supernet: Supernet) -> None:
    """By finite differences: how the loss of one image changes when a head is scaled."""
    model = supernet.extract(supernet.space.root.largest()).eval().double()
    ((x, labels),) = batch(supernet)
    images, wanted = x[:1].double(), labels[:1] if labels is not None else None
    units = find_units(model)
    found = find_importance("gate")(model, units, [(images, wanted)])[0]
    changes = []
    for head in range(units[0].count):
        losses = []
        for scale in (1 - 1e-4, 1 + 1e-4):
            columns = units[0].reader.weight.data.unflatten(1, (units[0].count, -1))
            columns[:, head] *= scale
            losses.append(nn.functional.cross_entropy(model(images), wanted).item())
            columns[:, head] /= scale
        changes.append(abs(losses[1] - losses[0]) / 2e-4)
    assert found.tolist() == pytest.approx(changes, rel=1e-3)


def test_a_measure_of_your_own(supernet: Supernet) -> None:
    @register_importance("backwards")
    def backwards(model: nn.Module, units: Any, batches: Any, loss: Any) -> list[Tensor]:
        """The last unit first."""
        return [torch.arange(unit.count).float() for unit in units]

    model = supernet.extract(supernet.space.root.largest())
    first = model.get_submodule("blocks.0.mlp.fc1").bias.clone()
    sort_by_importance(model, [], "backwards")
    assert torch.equal(model.get_submodule("blocks.0.mlp.fc1").bias, first.flip(0))
    with pytest.raises(UserError, match="unknown measure of importance 'weight'; there are: gate"):
        find_importance("weight")


def test_weights_of_a_file(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=5)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    x = torch.randn(1, 3, 160, 160)
    for file in ("weights.safetensors", "weights.pth"):
        source = find_pretrained(f"timm:test_vit:{tmp_path / file}")
        with torch.no_grad():
            assert torch.allclose(source.model(x), model.eval()(x), atol=1e-5)
        assert len(source.facts.mean or ()) == 3


def test_choices_in_brackets_open_further_dimensions(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=5).eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    source = find_pretrained(f"timm:test_vit[embed_dim=48,64]:{tmp_path / 'weights.safetensors'}")
    assert source.space.name == source_space("timm:test_vit[embed_dim=48,64]").name == "timm:test_vit[embed_dim=48,64]"
    assert source.model.arch == source.space.root.largest()


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_giant_patch14_dinov2"])
def test_the_size_of_the_images_can_be_a_choice(name: str) -> None:
    """Nets take the same images and resize them; positions are resampled."""
    supernet = Supernet.from_pretrained(pretrained(name), img_size=56 if "dinov2" in name else 64).eval()
    patch, side = (supernet.space.full_options[key] for key in ("patch_size", "img_size"))
    space = supernet.space.with_choices({"img_size": [side // 2, side]})
    assert get_space(space.name, **space.options).root.cardinality == 2 * supernet.space.root.cardinality
    elastic = supernet_from(supernet.extract(supernet.space.root.largest()), space).eval()
    x = torch.randn(2, 3, side, side)
    largest = space.root.largest()
    small = space.arch({**largest.to_dict(), "img_size": side // 2})
    model = elastic.extract(small)
    with torch.no_grad():
        assert torch.equal(elastic(x, largest), supernet(x, supernet.space.root.largest()))
        assert torch.equal(elastic(x, small), model(x))
        resized = nn.functional.interpolate(x, (side // 2, side // 2), mode="bilinear")
        fixed = Supernet.from_pretrained(pretrained(name), img_size=side).extract(supernet.space.root.largest()).eval()
        fixed.set_input_size(side // 2)  # type: ignore[operator]
        assert torch.allclose(model(x), fixed(resized), atol=1e-4)
    assert model.get_parameter("patch_embed.pos_embed").shape[1] < supernet.shared()["patch_embed.pos_embed"].shape[1]
    counted = count(space.build(small).to("meta"), side, 3)
    cost = space.cost(small)
    assert (cost.params, cost.macs) == (counted["params"], counted["macs"])
    with pytest.raises(UserError, match="choose no larger size"):
        space.with_options(img_size=side - patch).plan(largest)


def test_a_net_whose_blocks_differ_is_widened_without_a_change(supernet: Supernet, tmp_path: Path) -> None:
    """Heads, neurons and whole branches that it lacks are there to be trained, but say nothing."""
    blocks = [{"num_heads": 0, "hidden_dim": 96}, {"num_heads": 3, "hidden_dim": 256}]
    arch = supernet.space.arch({"embed_dim": 64, "blocks": blocks})
    model = supernet.extract(arch)
    model.save_pretrained(tmp_path / "cut")
    source = find_pretrained(str(tmp_path / "cut"))
    ((x, labels),) = batch(supernet)
    assert source.own_arch == arch
    assert source.model.arch == source.space.root.largest() != arch
    with torch.no_grad():
        assert torch.allclose(source.model(x), model(x), atol=1e-5)
    nn.functional.cross_entropy(source.model.train()(x), labels).backward()
    gradient = source.model.get_parameter("blocks.0.attn.proj.weight").grad
    assert gradient is not None
    assert gradient.abs().max() > 0


def test_a_file_of_a_supernet_is_a_source_with_the_name_of_its_space(tmp_path: Path) -> None:
    """So are AutoFormer's published files, which `load_supernet` reads as well."""
    saved = Supernet(get_space("autoformer-micro"), seed=3).eval()
    save_file(saved.weights.state_dict(), tmp_path / "supernet.safetensors")
    name = f"autoformer-micro:{tmp_path / 'supernet.safetensors'}"
    source, x = find_pretrained(name), torch.randn(1, 3, 32, 32)
    assert source.supernet is not None
    assert source_space(name).name == "autoformer-micro"
    with torch.no_grad():
        assert torch.equal(source.model(x), saved(x, saved.space.root.largest()))
    with pytest.raises(UserError, match="has the choices that it was trained with"):
        find_pretrained(f"autoformer-micro[embed_dim=32,64]:{tmp_path / 'supernet.safetensors'}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("timm:test_vit[embed_dim=32,48]:{folder}/weights.safetensors", "so they end with embed_dim=64"),
        ("timm:test_vit:{folder}/nothing.safetensors", "there is no file of weights"),
        (
            "timm:test_vit2:{folder}/weights.safetensors",
            "reg_token is missing, expected .* are these weights of test_vit2",
        ),
        ("{folder}", "expected timm:NAME, timm:NAME:FILE, or the folder of a run or a model"),
    ],
)
def test_what_is_no_source_is_refused(tmp_path: Path, source: str, message: str) -> None:
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(UserError, match=message):
        find_pretrained(source.format(folder=tmp_path))


SHARED = Path(__file__).parents[3] / "shared"


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the real weights and images are not on this machine")
@pytest.mark.parametrize(("name", "top1"), [("vit_tiny_patch16_224", 0.753), ("deit_tiny_patch16_224", 0.708)])
def test_real_weights_have_their_published_accuracy(name: str, top1: float) -> None:
    import sys

    sys.path.insert(0, str(SHARED / "data"))
    from read import load_tiles  # type: ignore[import-not-found]

    images, labels = load_tiles(SHARED / "data" / "imagenet_val_1k.npz")["test"]
    source = find_pretrained(f"timm:{name}:{SHARED / 'weights' / name}.safetensors")
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (source.facts.mean, source.facts.std))
    correct = 0
    with torch.no_grad():
        for start in range(0, len(images), 50):
            x = torch.from_numpy(images[start : start + 50]).permute(0, 3, 1, 2).float() / 255
            answers = source.model((x - mean) / std).argmax(-1)
            correct += (answers == torch.from_numpy(labels[start : start + 50])).sum().item()
    assert correct / len(images) == pytest.approx(top1, abs=0.0025)


# Real weights and images, which lie beside the repository where it is developed

SHARED = Path(__file__).parents[2] / ".." / "shared"
ACCURACIES = {"vit_tiny_patch16_224": 0.753, "deit_tiny_patch16_224": 0.708}
"""Top-1 on `imagenet_val_1k.npz`, as stated by those who packed it."""


def imagenet(mean: Any, std: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The 1,000 images in batches, which are stored as tiles of large JPEGs."""
    stored = np.load(SHARED / "data" / "imagenet_val_1k.npz", allow_pickle=False)
    (height, width), rows, columns = stored["tile"], int(stored["rows"]), int(stored["cols"])
    labels, offsets = torch.from_numpy(stored["test_y"]).long(), stored["test_off"]
    for number, (start, end) in enumerate(pairwise(offsets)):
        mosaic = np.asarray(Image.open(BytesIO(stored["test_data"][start:end].tobytes())).convert("RGB"))
        tiles = mosaic.reshape(rows, height, columns, width, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, height, width)
        some = labels[number * len(tiles) : (number + 1) * len(tiles)]
        x = torch.from_numpy(np.ascontiguousarray(tiles[: len(some)])).float() / 255
        yield (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1), some


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCURACIES)
def test_real_weights_have_the_accuracy_that_is_stated_and_timms_logits(name: str) -> None:
    file = SHARED / "weights" / f"{name}.safetensors"
    if not file.exists():
        pytest.skip(f"needs ../shared/weights/{file.name} and ../shared/data/imagenet_val_1k.npz")
    source, theirs = find_pretrained(f"timm:{name}:{file}"), timm.create_model(name).eval()
    theirs.load_state_dict(load_file(file))
    assert (source.facts.mean, source.facts.std) == (theirs.pretrained_cfg["mean"], theirs.pretrained_cfg["std"])
    with torch.inference_mode():
        batches = list(imagenet(source.facts.mean, source.facts.std))
        right = sum(int((source.model.eval()(x).argmax(1) == labels).sum()) for x, labels in batches)
        few = batches[0][0][:4].double()  # in single precision kernels round otherwise, by 2e-5 of logits near 10
        torch.testing.assert_close(source.model.double()(few), theirs.double()(few), atol=1e-9, rtol=1e-9)
    assert sum(len(labels) for _, labels in batches) == 1000
    assert right / 1000 == pytest.approx(ACCURACIES[name], abs=0.0011)  # a tie may fall otherwise on another machine


def test_what_is_no_model_is_refused_by_what_it_is() -> None:
    name: Any = "timm:deit_tiny_patch16_224"
    with pytest.raises(UserError, match=r"takes a model, such as timm.create_model.*, not a str"):
        Supernet.from_pretrained(name)
