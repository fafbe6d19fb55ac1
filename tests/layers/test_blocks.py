"""MLP, head, and the initial weights of a transformer block."""

from typing import Any

import pytest
import torch

from nasformer.layers.basic import TokenHead
from nasformer.layers.blocks import Mlp, TransformerBlock


@pytest.mark.parametrize("extra", [1, 4, 7])
def test_padded_mlp_equals_plain(extra: int) -> None:
    torch.manual_seed(0)
    layer, x = Mlp(12, 42), torch.randn(2, 5, 12)
    torch.testing.assert_close(layer.forward_padded(x, extra), layer(x), rtol=1e-6, atol=1e-6)
    weights = list(layer.parameters())
    padded = torch.autograd.grad(layer.forward_padded(x, extra).square().sum(), weights)
    plain = torch.autograd.grad(layer(x).square().sum(), weights)
    for ours, expected in zip(padded, plain, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_head_pools_patches_or_takes_the_class_token() -> None:
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(TokenHead(12, 3, "avg")(x, pre_logits=True), x[:, 1:].mean(1))
    assert torch.equal(TokenHead(12, 3, "token")(x, pre_logits=True), x[:, 0])


def test_new_classifier_stays_on_the_device() -> None:
    head = TokenHead(12, 3).to("meta")
    head.reset(5)
    assert head.fc.weight.device.type == "meta"
    assert head.fc.weight.shape == (5, 12)


BLOCK: dict[str, Any] = {
    "embed_dim": 64,
    "num_heads": 4,
    "head_dim": 16,
    "hidden_dim": 192,
    "grid": (2, 2),
    "max_distance": None,
}


@pytest.mark.parametrize(("options", "std"), [({}, 0.02), ({"init_std": 0.1}, 0.1)])
def test_a_block_starts_with_the_spread_that_is_asked_for(options: dict[str, Any], std: float) -> None:
    torch.manual_seed(0)
    block = TransformerBlock(**BLOCK, **options)
    for linear in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2):
        assert linear.weight.std().item() == pytest.approx(std, rel=0.05)
        assert not linear.bias.any()


def test_a_block_starts_as_torch_has_it() -> None:
    torch.manual_seed(0)
    block = TransformerBlock(**BLOCK, init_std=None)
    for linear, inputs in ((block.attn.qkv, 64), (block.attn.proj, 64), (block.mlp.fc1, 64), (block.mlp.fc2, 192)):
        assert linear.weight.abs().max() <= inputs**-0.5
        assert linear.weight.std().item() == pytest.approx((3 * inputs) ** -0.5, rel=0.05)
        assert linear.bias.any()
    assert TransformerBlock.cost(**BLOCK, init_std=None) == TransformerBlock.cost(**BLOCK)
