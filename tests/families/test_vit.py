"""ViT: what timm computes, and what is left where heads and neurons are cut."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from nasformer.errors import UserError
from nasformer.families.vit import ViT
from nasformer.models.pretrained import space_of, timm_space
from nasformer.models.registry import get_space
from nasformer.space.arch import Arch

CUTS = "vit-cuts"
SMALL: dict[str, Any] = {"img_size": 32, "depth": 2, "embed_dim": 64, "num_heads": 4, "num_classes": 7}
MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {},
    "deit3_small_patch16_224": {},  # layer scale, positions of patches only
    "vit_small_patch14_reg4_dinov2": {"img_size": 28},  # registers, layer scale
    "vit_giant_patch14_dinov2": {"img_size": 28, "mlp_ratio": 2.0},  # SwiGLU
    "vit_base_patch32_clip_quickgelu_224": {"img_size": 64},  # a norm before the blocks, another GELU
    "vit_base_patch16_siglip_224": {},  # attention pooling, no class token
    "vit_base_patch16_siglip_gap_224": {},
    "vit_so150m_patch16_reg4_map_256": {"mlp_ratio": 2.0},  # attention pooling beside registers
    "vit_little_patch16_reg4_gap_256": {},  # average pooling, a norm behind it
    "vit_medium_patch16_gap_240": {},  # no bias of q, k and v
    "vit_tiny_patch16_224.qk": {"qk_norm": True},
}


def theirs(name: str, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name.removesuffix(".qk"), **{**SMALL, **MODELS.get(name, {}), **changes}).eval()
    for weight in model.parameters():  # else gains and biases would hide behind ones and zeros
        nn.init.normal_(weight, mean=float(weight.ndim == 1) / 2, std=0.2)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_parameters_are_those_of_timm(name: str) -> None:
    model = theirs(name)
    space = space_of(model)
    arch = space.root.largest()
    ours = space.build(arch).eval()
    ours.load_state_dict(ViT.from_timm(model.state_dict()))
    x = torch.randn(2, *space.image_shape)
    with torch.no_grad():
        assert torch.allclose(ours(x), model(x), atol=1e-5)
        assert torch.allclose(ours.forward_features(x), model.forward_features(x), atol=1e-5)
    assert space.cost(arch).params == sum(weight.numel() for weight in model.parameters())


def test_whole_models_of_timm_have_their_published_size() -> None:
    space = timm_space("deit_tiny_patch16_224")
    assert space.cost(space.root.largest()).params == 5_717_416


def test_the_name_of_a_space_rebuilds_it() -> None:
    space = space_of(theirs("vit_tiny_patch16_224"))
    again = get_space(space.name, **space.options)
    assert (again.root.cardinality, again.plan(again.root.largest())) == (
        space.root.cardinality,
        space.plan(space.root.largest()),
    )


def test_without_heads_and_neurons_a_branch_is_left_out() -> None:
    space = get_space(CUTS)
    whole = {"num_heads": 4, "hidden_dim": 256}
    cut = space.arch({"embed_dim": 64, "blocks": [whole, {**whole, "num_heads": 0}, {**whole, "hidden_dim": 0}] * 2})
    model, x = space.build(cut).eval(), torch.randn(2, *space.image_shape)
    full = space.build(space.root.largest()).eval()
    full.load_state_dict({**full.state_dict(), **model.state_dict()})
    with torch.no_grad():
        for index, block in enumerate(cut.blocks):
            layer: Any = full.get_submodule(f"blocks.{index}")
            for branch in [layer.attn.proj] * (block.num_heads == 0) + [layer.mlp.fc2] * (block.hidden_dim == 0):
                branch.weight.zero_()
                branch.bias.zero_()
        assert torch.allclose(model(x), full(x), atol=1e-6)


def test_a_block_that_keeps_nothing_is_no_layer() -> None:
    space = get_space(CUTS)
    model = space.build(space.root.smallest())
    assert not any(name.startswith("blocks") for name in model.segment_names)
    assert [info["module"] for info in model.feature_info] == ["patch_embed"]
    assert model(torch.randn(1, *space.image_shape)).shape == (1, 10)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18", "timm's resnet18 is a ResNet, from which we can cut nothing; supported are timm's plain ViTs"),
        ("vit_base_patch16_rpn_224", "blocks of the type ResPostBlock"),
        ("vit_base_patch16_xp_224", "blocks of the type ParallelScalingBlock"),
        ("deit_tiny_distilled_patch16_224", "is a VisionTransformerDistilled"),
        ("vit_tiny_patch16_242", "timm has no model 'vit_tiny_patch16_242'; near it: vit_tiny_patch16_224"),
    ],
)
def test_what_cannot_be_cut_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        timm_space(name)


def test_a_swin_can_lose_the_attention_of_a_block() -> None:
    space = timm_space("swin_tiny_patch4_window7_224").with_options(img_size=56, num_classes=3)
    arch: Arch = space.root.smallest()
    model = space.build(arch)
    assert model(torch.randn(1, 3, 56, 56)).shape == (1, 3)
    assert not any("attn" in name for name, _ in model.named_parameters())
    assert space.cost(arch).params == sum(weight.numel() for weight in model.parameters())
