"""Patch embeddings, and PiT's pooling between stages, against convolutions and timm's."""

from __future__ import annotations

import pytest
import torch
from timm.models.pit import ConvEmbedding, Pooling

from nasformer.errors import UserError
from nasformer.layers.stem import OverlapPatchEmbed, PatchEmbed, TokenPool, half_grid


@pytest.mark.parametrize("grid", [(3, 3), (2, 4)])
def test_patches_equal_a_convolution(grid: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer, x = PatchEmbed(grid, 4, 3, 12), torch.randn(2, 3, grid[0] * 4, grid[1] * 4)
    expected = layer.proj(x).flatten(2).transpose(1, 2)
    torch.testing.assert_close(layer.embed(x), expected, rtol=1e-5, atol=1e-6)
    tokens = layer(x)
    torch.testing.assert_close(tokens[:, :1], (layer.cls_token + layer.pos_embed[:, :1]).expand(2, -1, -1))
    torch.testing.assert_close(tokens[:, 1:], expected + layer.pos_embed[:, 1:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("patch_size", "stride", "grid"), [(4, 2, (5, 7)), (3, 2, (4, 4)), (4, 4, (2, 3))])
def test_patches_equal_timms_and_the_class_token_has_no_position(
    patch_size: int, stride: int, grid: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    height, width = ((side - 1) * stride + patch_size for side in grid)
    ours = OverlapPatchEmbed(grid, patch_size, stride, 3, 12)
    theirs = ConvEmbedding(3, 12, (height, width), patch_size, stride)
    theirs.conv.load_state_dict(ours.proj.state_dict())
    assert theirs.grid_size == grid
    x = torch.randn(2, 3, height, width)
    tokens = ours(x)
    assert torch.equal(tokens[:, :1], ours.cls_token.expand(2, -1, -1))
    torch.testing.assert_close(tokens[:, 1:], theirs(x).flatten(2).transpose(1, 2) + ours.pos_embed)
    assert OverlapPatchEmbed.cost(grid, patch_size, stride, 3, 12).params == sum(p.numel() for p in ours.parameters())


def test_images_of_another_size_are_refused() -> None:
    layer = OverlapPatchEmbed((5, 7), 4, 2, 3, 12)
    with pytest.raises(UserError, match="images are 13 x 16, the model is for 12 x 16"):
        layer(torch.randn(1, 3, 13, 16))  # a convolution would drop the last row without a word


@pytest.mark.parametrize("grid", [(5, 7), (4, 6), (1, 2)])
@pytest.mark.parametrize("out_dim", [6, 12, 24])
def test_pooling_equals_timms(grid: tuple[int, int], out_dim: int) -> None:
    torch.manual_seed(0)
    ours, theirs = TokenPool(grid, 6, out_dim), Pooling(6, out_dim, stride=2)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 1 + grid[0] * grid[1], 6)
    pooled, cls_token = theirs(x[:, 1:].transpose(1, 2).reshape(2, 6, *grid), x[:, :1])
    assert pooled.shape[2:] == half_grid(grid)
    torch.testing.assert_close(ours(x), torch.cat([cls_token, pooled.flatten(2).transpose(1, 2)], dim=1))


def test_pooling_makes_each_channel_from_one_channel() -> None:
    layer, x = TokenPool((4, 4), 3, 6), torch.randn(1, 17, 3)
    before = layer(x)
    x[:, 1:, 1] += 1
    changed = (layer(x) != before)[0, 1:].any(0)
    assert changed.tolist() == [False, False, True, True, False, False]


def test_layers_start_as_torch_has_them() -> None:
    torch.manual_seed(0)
    pool, stem = TokenPool((4, 4), 64, 128), OverlapPatchEmbed((3, 3), 16, 8, 3, 64)
    for layer, inputs in ((pool.fc, 64), (pool.conv, 9), (stem.proj, 768)):
        assert layer.weight.abs().max() <= inputs**-0.5  # torch's default is uniform within these bounds
        assert layer.weight.std().item() == pytest.approx((3 * inputs) ** -0.5, rel=0.1)
