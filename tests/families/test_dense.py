"""Segmentation models: every family with a UPerNet head, alone and as a supernet; the head against a library's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from families.small import family_space, image_size, images, randomise, small_space
from nasformer.errors import UserError
from nasformer.export.standalone import standalone_source
from nasformer.latency.measure import EagerRunner
from nasformer.layers.segmentation import DeepLabV3Head, UPerNetHead
from nasformer.models.dense import dense_space
from nasformer.models.registry import list_families
from nasformer.models.space import Space
from nasformer.models.storage import build_from, load_model, save_model
from nasformer.supernet.supernet import Supernet
from nasformer.tasks.registry import get_task

CLASSES = 5


def small_dense_space(family: str) -> Space:
    return dense_space(small_space(family_space(family), num_classes=CLASSES), "segment", decoder_dim=8)


@pytest.mark.parametrize("family", list_families())
def test_every_family_gives_logits_of_every_pixel_at_the_stated_cost(family: str) -> None:
    space = small_dense_space(family)
    arch = space.sample(1)
    model = space.build(arch).eval().requires_grad_(False)
    outputs: dict[str, Tensor] = {}
    assert model(images(space), outputs).shape == (2, CLASSES, *image_size(space))
    assert space.cost(arch).params == sum(weight.numel() for weight in model.parameters())
    head = space.plan(arch)[-1]
    with FlopCounterMode(display=False) as counter:
        model.head([outputs[name] for name in head.inputs])
    assert 2 * 2 * head.cost().macs == counter.get_total_flops()


@pytest.mark.parametrize("family", list_families())
def test_an_arch_computes_in_the_supernet_what_its_extracted_model_computes(family: str) -> None:
    space = small_dense_space(family)
    supernet, x = randomise(Supernet(space)).eval(), images(space)
    for arch in (space.root.smallest(), space.sample(2)):
        torch.testing.assert_close(supernet(x, arch), supernet.extract(arch)(x))


HEADS = [
    *(("segment", {"head": head}) for head in ("upernet", "deeplabv3", "deeplabv3plus")),
    *(("detect", {"head": head}) for head in ("mask-rcnn", "cascade")),
    *(("panoptic", {}), ("vqa", {})),
]


@pytest.mark.parametrize(("task", "options"), HEADS)
@pytest.mark.parametrize("family", list_families())
def test_every_head_trains_every_family(family: str, task: str, options: dict[str, str]) -> None:
    space = dense_space(small_space(family_space(family), num_classes=CLASSES), task, decoder_dim=16, **options)
    supernet, x, objective = Supernet(space), images(space), get_task(task).objective
    batches: Any = SimpleNamespace(img_size=image_size(space)[0], num_classes=CLASSES, classes=["class"] * CLASSES)
    targets = objective.example_targets(len(x), batches)
    told = {"targets": targets} if objective.within_model else {}
    for arch in (space.root.smallest(), space.root.largest()):
        supernet.zero_grad()
        loss = objective.loss(supernet(x, arch, **told), x, targets)
        loss.backward()
        gradients = [weight.grad for weight in supernet.parameters() if weight.grad is not None]
        assert loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert next(supernet.parameters()).grad is not None


@pytest.mark.parametrize("family", ["autoformer", "s3", "pit"])
def test_a_stored_model_comes_back_and_takes_other_images_and_classes(family: str, tmp_path: Path) -> None:
    space = small_dense_space(family)
    model = space.build(space.root.smallest()).eval()
    save_model(model, tmp_path)
    assert torch.equal(load_model(tmp_path)(images(space)), model(images(space)))
    larger = space.with_options(img_size=33 if family == "pit" else 64)
    other = load_model(tmp_path, img_size=larger.full_options["img_size"], num_classes=3)
    assert other(images(larger)).shape == (2, 3, *image_size(larger))


def test_the_backbone_of_a_classifier_is_inherited_and_the_head_is_fresh() -> None:
    space = small_dense_space("autoformer")
    classifier = randomise(small_space(family_space("autoformer")).build(space.root.smallest()))
    model, other = (build_from(classifier, space, seed, keep_classifier=True) for seed in (0, 1))
    for name, weight in classifier.state_dict().items():
        if not name.startswith(("norm", "head")):
            assert torch.equal(model.state_dict()[name], weight)
    assert not torch.equal(model.head.fuse[0].weight, other.head.fuse[0].weight)


def test_upernet_equals_that_of_segmentation_models_pytorch() -> None:
    library = pytest.importorskip("segmentation_models_pytorch.decoders.upernet.decoder")
    channels, dim = (6, 8, 10, 12), 4
    theirs = randomise(library.UPerNetDecoder((0, 0, *channels), 5, dim)).eval()
    grids = ((16, 16), (8, 8), (4, 4), (2, 2))
    ours = UPerNetHead(channels, grids, (64, 64), CLASSES, dim).eval()
    convolutions = {"feature_norms.": "norms.", "fusion_block.": "fuse.", "psp.out_conv.": "bottleneck."}
    state = {}
    for name, weight in theirs.state_dict().items():
        for old, new in convolutions.items():
            name = name.replace(old, new)
        if name.startswith("psp.blocks."):
            name = name.replace("psp.blocks.", "pools.")
        if name.startswith(("fpn_lateral_blocks.", "fpn_conv_blocks.")):  # theirs go from coarse to fine
            part, number, rest = name.split(".", 2)
            new = {"fpn_lateral_blocks": "laterals", "fpn_conv_blocks": "smooth"}[part]
            name = f"{new}.{2 - int(number)}.{rest.removeprefix('conv_norm_relu.')}"
        state[name] = weight
    bottleneck = state["bottleneck.0.weight"]  # theirs has the map first
    state["bottleneck.0.weight"] = torch.cat([bottleneck[:, channels[-1] :], bottleneck[:, : channels[-1]]], 1)
    ours.load_state_dict(state | {name: weight for name, weight in ours.state_dict().items() if name.startswith("fc.")})
    maps = [torch.randn(2, width, *grid) for width, grid in zip(channels, grids, strict=True)]
    torch.testing.assert_close(ours.decode(maps), theirs([None, None, *maps]))


@pytest.mark.parametrize("family", ["autoformer", "s3"])
def test_layers_that_are_timed_one_by_one_compute_the_same(family: str) -> None:
    space = small_dense_space(family)
    runner, arch = EagerRunner(space, torch.device("cpu"), 1), space.sample(1)
    x = runner.images
    for layer in runner.layers(arch):
        x = layer(x)
    torch.testing.assert_close(x, runner.net(arch)(runner.images))


@pytest.mark.parametrize("family", ["autoformer", "s3"])
@pytest.mark.parametrize("decoder", ["deeplabv3", "deeplabv3plus"])
def test_deeplab_reads_the_maps_of_families_and_of_their_supernets(family: str, decoder: str) -> None:
    space = small_dense_space(family).with_options(head=decoder)
    supernet, x, arch = randomise(Supernet(space)).eval(), images(space), space.root.smallest()
    model = supernet.extract(arch).requires_grad_(False)
    outputs: dict[str, Tensor] = {}
    assert model(x, outputs).shape == (2, CLASSES, *image_size(space))
    torch.testing.assert_close(supernet(x, arch), model(x))
    assert space.cost(arch).params == sum(weight.numel() for weight in model.parameters())
    head = space.plan(arch)[-1]
    with FlopCounterMode(display=False) as counter:
        model.head([outputs[name] for name in head.inputs])
    assert 2 * 2 * head.cost().macs == counter.get_total_flops()


def test_deeplabv3_equals_that_of_torchvision() -> None:
    from torchvision.models.segmentation.deeplabv3 import DeepLabHead

    theirs = randomise(DeepLabHead(6, CLASSES, (12, 24, 36))).eval()
    ours = DeepLabV3Head((6,), ((40, 40),), (320, 320), CLASSES).eval()
    renamed = {f"0.convs.{number}": f"aspp.branches.{number}" for number in range(4)}
    renamed |= {"0.convs.4.1": "aspp.pool.1.0", "0.convs.4.2": "aspp.pool.1.1", "0.project": "aspp.project"}
    renamed |= {"1": "fuse.0", "2": "fuse.1", "4": "fc"}
    state = {}
    for name, weight in theirs.state_dict().items():
        old = max((old for old in renamed if name.startswith(f"{old}.")), key=len)
        state[renamed[old] + name.removeprefix(old)] = weight
    ours.load_state_dict(state | {f"norm.{name}": weight for name, weight in ours.norm.state_dict().items()})
    x = torch.randn(2, 6, 40, 40)
    expected = torch.nn.functional.interpolate(theirs(ours.norm(x)), (320, 320), mode="bilinear")
    torch.testing.assert_close(ours([x]), expected)


def test_an_unknown_decoder_is_refused() -> None:
    with pytest.raises(UserError, match='head is "fcn", expected one of "upernet"'):
        small_dense_space("s3").with_options(head="fcn")


@pytest.mark.parametrize(
    ("task", "options"), [("segment", {"head": "deeplabv3"}), ("segment", {"head": "deeplabv3plus"}), ("panoptic", {})]
)
def test_an_exported_file_hands_the_head_the_maps_that_it_reads(task: str, options: dict[str, str]) -> None:
    space = dense_space(small_space(family_space("s3"), num_classes=CLASSES), task, decoder_dim=16, **options)
    model = randomise(space.build(space.root.smallest())).eval()
    module: dict[str, Any] = {"__file__": "model.py"}
    exec(compile(standalone_source(model), "model.py", "exec"), module)
    network = module["Model"]().eval()
    network.load_state_dict(model.state_dict())
    torch.testing.assert_close(network(images(space)), model(images(space)))
