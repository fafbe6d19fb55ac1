"""Models of timm with the head of a dense task."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.models.dense import TimmNet
from nasformer.runs.baselines import build_timm, count

SMALL: dict[str, Any] = {"img_size": 64, "in_chans": 3, "num_classes": 3}


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_100"])
@pytest.mark.parametrize("task", ["segment", "detect", "panoptic", "vqa"])
def test_costs_are_those_of_encoder_and_head(name: str, task: str) -> None:
    model = build_timm(name, **SMALL, task=task, head={"decoder_dim": 16}, device="meta")
    assert isinstance(model, TimmNet)
    costs = count(model, 64, 3)
    assert costs["params"] == sum(weight.numel() for weight in model.parameters())
    classifier = count(build_timm(name, **SMALL, device="meta"), 64, 3)
    assert costs["macs"] > 0.9 * classifier["macs"]  # all blocks are there, but for the last layers of some


def test_maps_are_those_of_timm_whatever_their_order() -> None:
    """Swin's maps have their channels last."""
    model = TimmNet("swin_tiny_patch4_window7_224", "segment", 224, 3, 3, {"decoder_dim": 8}, {"depths": (1, 1, 1, 1)})
    assert model.channels == [96, 192, 384, 768]
    assert dict(model.segment.options)["grids"] == ((56, 56), (28, 28), (14, 14), (7, 7))
    assert model.eval()(torch.randn(1, 3, 224, 224)).shape == (1, 3, 224, 224)


def test_the_head_reads_the_maps() -> None:
    torch.manual_seed(0)
    model = TimmNet("resnet18", "segment", 64, 3, 5, {"decoder_dim": 8}).eval()
    x = torch.randn(2, 3, 64, 64)
    encoder = timm.create_model("resnet18", features_only=True).eval()
    encoder.load_state_dict(model.encoder.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.head(encoder(x)[-4:]))
