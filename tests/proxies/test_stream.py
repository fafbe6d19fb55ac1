"""Stream and stream-fit: by hand on small nets, on models of others, and against published accuracies."""

from __future__ import annotations

import math
from typing import Any

import pytest
import timm
import torchvision
from torch import nn

from families.small import golden_path, some_archs
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.proxies.counts import BlockShape, block_shapes
from nasformer.proxies.parts import noise_probe
from nasformer.proxies.ranking import Table, read_table, trivial_counts
from nasformer.proxies.registry import Inapplicable, get_proxies
from nasformer.proxies.untrained import SideBySide, UntrainedLayers
from nasformer.utils.statistics import kendall

from .spaces import SPACES

STREAM, FIT = get_proxies("stream,stream-fit")
PROBE = noise_probe((3, 32, 32), num_classes=10, batch_size=2)
AUTOFORMER = get_space("autoformer-micro", img_size=16, patch_size=8, num_classes=10)
PIT = get_space("pit-tiny", img_size=17, patch_size=3, stride=2, num_classes=10)
LEVELLED = 0.08 * 2.14  # what a depth far from 13.52 costs

# Widths 32; heads of 16, so that attention is 32, 48 and 64 wide; MLPs 64, 96 and 128.
A = {"embed_dim": 32, "depth": 3, "num_heads": [2, 3, 4], "mlp_ratio": [2, 3, 4]}
A_LATE = (1 / 6 * (0.087 * 64 + 0.08 * 32) + 3 / 6 * (0.087 * 96 + 0.08 * 48) + 5 / 6 * (0.087 * 128 + 0.08 * 64)) / 32
# One block 32 wide, four 32 and two 64; attention as wide as the stream, MLPs twice.
P = {"base_dim": 16, "mlp_ratio": 2, "depth": [1, 4, 2], "num_heads": [2, 2, 4]}
CASES = [
    pytest.param(AUTOFORMER, A, 96, math.log(32) + A_LATE / 3 - LEVELLED, 3.513258, id="autoformer"),
    pytest.param(PIT, P, 288, math.log(288 / 7) + 0.5 * (2 * 0.087 + 0.08) - LEVELLED, 3.672850, id="pit"),
]


@pytest.mark.parametrize(("space", "arch", "stream", "fitted", "number"), CASES)
def test_by_hand(space: Space, arch: dict[str, Any], stream: int, fitted: float, number: float) -> None:
    model = space.build(space.arch(arch))
    assert STREAM.score(model, PROBE) == stream
    assert FIT.score(model, PROBE) == pytest.approx(fitted, rel=1e-12)
    assert FIT.score(model, PROBE) == pytest.approx(number, abs=1e-6)


@pytest.mark.parametrize(("depth", "cost"), [(12, 2.14), (13, 0.52**2), (14, 0.48**2), (15, 2.14)])
def test_depth_is_best_near_13_or_14(depth: int, cost: float) -> None:
    """On either side it levels off: 12 is 1.52 away, whose square is 2.31, and 15 is 1.48 away, 2.19."""
    model = timm.create_model("test_vit", img_size=32, num_classes=10, embed_dim=64, num_heads=2, depth=depth)
    (block,) = set(block_shapes(model))
    late = (0.087 * block.hidden + 0.08 * 64) / 64
    assert FIT.score(model, PROBE) == pytest.approx(math.log(64) + late / 2 - 0.08 * cost, rel=1e-12)
    assert STREAM.score(model, PROBE) == 64 * depth


def test_late_width_is_worth_more_than_early_width() -> None:
    early, late = (
        FIT.score(AUTOFORMER.build(AUTOFORMER.arch({**A, "num_heads": heads, "mlp_ratio": ratios})), PROBE)
        for heads, ratios in (([4, 3, 2], [4, 3, 2]), ([2, 3, 4], [2, 3, 4]))
    )
    assert late > early


# Models of others


def test_a_vit_of_timms() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=10)
    assert block_shapes(model) == [BlockShape(192, 768, 192)] * 3
    assert STREAM.score(model, PROBE) == 576
    late = (0.087 * 768 + 0.08 * 192) / 192
    assert FIT.score(model, PROBE) == pytest.approx(math.log(192) + late / 2 - LEVELLED)


def test_blocks_without_attention() -> None:
    """As ConvNeXt has them: their MLPs tell the width."""
    model = timm.create_model("convnext_tiny", depths=(1, 2, 1, 1), dims=(8, 16, 24, 32), num_classes=10)
    assert block_shapes(model) == [
        BlockShape(8, 32),
        BlockShape(16, 64),
        BlockShape(16, 64),
        BlockShape(24, 96),
        BlockShape(32, 128),
    ]
    assert STREAM.score(model, PROBE) == 96
    assert FIT.score(model, PROBE) == pytest.approx(math.log(96 / 5) + 0.5 * 0.087 * 4 - LEVELLED)


@pytest.mark.parametrize("proxy", [STREAM, FIT], ids=lambda proxy: proxy.name)
@pytest.mark.parametrize("model", [nn.Sequential(nn.Conv2d(3, 4, 3)), torchvision.models.resnet18()], ids=["cnn", "rn"])
def test_a_net_without_blocks_has_no_score(proxy: Any, model: nn.Module) -> None:
    with pytest.raises(Inapplicable, match="the model has 0 modules named blocks"):
        proxy.score(model, PROBE)


# Many at once


@pytest.mark.parametrize("family", SPACES)
def test_many_are_scored_as_one_by_one_and_none_is_built(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space = SPACES[family]
    archs = [*some_archs(space, count=3).values(), space.root.smallest()]
    alone = [[proxy.score(space.build(arch), PROBE) for arch in archs] for proxy in (STREAM, FIT)]
    assert len(set(alone[1])) > (1 if family == "trionet" else 2)  # only its depth varies here
    nets = SideBySide(UntrainedLayers(space))
    monkeypatch.setattr(UntrainedLayers, "layer", lambda *_: pytest.fail("no layer is needed"))
    assert STREAM.many is not None
    assert FIT.many is not None
    assert [many(nets, archs, PROBE) for many in (STREAM.many, FIT.many)] == alone
    assert STREAM.many(nets, [], PROBE) == []


# Published accuracies


def taus(table: Table, target: str) -> dict[str, float]:
    """Kendall's tau of both scores and of everything that can be counted."""
    nets = SideBySide(UntrainedLayers(table.space))
    assert STREAM.many is not None
    assert FIT.many is not None
    scores = {proxy.name: proxy.many(nets, table.archs, PROBE) for proxy in (STREAM, FIT) if proxy.many}
    columns = trivial_counts(table.space, table.archs) | scores
    return {name: kendall(values, table.accuracy[target]) or 0.0 for name, values in columns.items()}


@pytest.mark.parametrize(
    "size", [pytest.param("tiny", marks=pytest.mark.slow), pytest.param("small", marks=pytest.mark.slow), "base"]
)
def test_the_fit_beats_every_count_on_inherited_weights(size: str) -> None:
    found = taus(read_table(golden_path(f"inherited_autoformer_{size}.json")), "imagenet_inherited")
    fitted, _ = found.pop("stream-fit"), found.pop("stream")
    assert fitted > max(found.values())


@pytest.mark.parametrize("family", ["autoformer", "pit"])
def test_the_stream_beats_parameters_on_trained_nets(family: str) -> None:
    found = taus(read_table(golden_path(f"ground_truth_{family}.json")), "flower_kd")
    assert found["stream"] > found["params"]
