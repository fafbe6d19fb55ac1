"""The fused form of relative attention against the published form, written out."""

import pytest
import torch
from torch import Tensor

from nasformer.layers.attention import RelativeAttention, RelativePositions
from nasformer.layers.stem import Grid


def pair_vectors(table: RelativePositions, grid: Grid, max_distance: int) -> Tensor:
    """r(i, j) for every pair of tokens, as the paper defines it: [tokens, tokens, head_dim]."""
    height, width = grid
    tokens = height * width + 1
    vectors = torch.empty(tokens, tokens, table.vertical.shape[1], dtype=table.vertical.dtype)
    for i in range(tokens):
        for j in range(tokens):
            if i == 0 or j == 0:
                vectors[i, j] = table.vertical[0] + table.horizontal[0]
                continue
            rows = (j - 1) // width - (i - 1) // width
            columns = (j - 1) % width - (i - 1) % width
            rows, columns = (max(-max_distance, min(max_distance, d)) for d in (rows, columns))
            vectors[i, j] = table.vertical[rows + max_distance + 1] + table.horizontal[columns + max_distance + 1]
    return vectors


def published_form(layer: RelativeAttention, x: Tensor) -> Tensor:
    batch, tokens, _ = x.shape
    qkv = layer.qkv(x).reshape(batch, tokens, 3, layer.num_heads, layer.head_dim).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    r_k = pair_vectors(layer.rel_pos_k, layer.grid, layer.max_distance)
    r_v = pair_vectors(layer.rel_pos_v, layer.grid, layer.max_distance)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) + torch.einsum("bhid,ijd->bhij", q, r_k)
    attention = (scores * layer.head_dim**-0.5).softmax(-1)
    out = torch.einsum("bhij,bhjd->bhid", attention, v) + torch.einsum("bhij,ijd->bhid", attention, r_v)
    return layer.proj(out.transpose(1, 2).reshape(batch, tokens, -1))


def layer_for(grid: Grid, max_distance: int, head_dim: int = 8, num_heads: int = 3) -> RelativeAttention:
    torch.manual_seed(0)
    layer = RelativeAttention(20, num_heads, head_dim, grid, max_distance).double()
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return layer


@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (1, 6), (6, 2)])
@pytest.mark.parametrize("max_distance", [14, 2])
def test_equals_published_form(grid: Grid, max_distance: int) -> None:
    layer = layer_for(grid, max_distance)
    x = torch.randn(2, grid[0] * grid[1] + 1, 20, dtype=torch.double)
    torch.testing.assert_close(layer(x), published_form(layer, x), rtol=1e-10, atol=1e-10)


def test_gradients_equal_published_form() -> None:
    layer = layer_for((3, 4), 2)
    x = torch.randn(2, 13, 20, dtype=torch.double)
    fused = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    literal = torch.autograd.grad(published_form(layer, x).square().sum(), list(layer.parameters()))
    for ours, theirs in zip(fused, literal, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_another_grid_needs_no_other_weights() -> None:
    layer = layer_for((4, 4), 3)
    names = set(layer.state_dict())
    layer.set_grid((6, 7))
    assert set(layer.state_dict()) == names
    x = torch.randn(1, 43, 20, dtype=torch.double)
    torch.testing.assert_close(layer(x), published_form(layer, x), rtol=1e-10, atol=1e-10)


def test_without_relative_positions_it_is_plain_attention() -> None:
    torch.manual_seed(0)
    layer = RelativeAttention(20, 3, 8, (4, 4), max_distance=None)
    reference = torch.nn.MultiheadAttention(24, 3, batch_first=True)
    assert not any("rel_pos" in name for name in layer.state_dict())
    x = torch.randn(2, 17, 20)
    q, k, v = layer.qkv(x).chunk(3, -1)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.eye(24).repeat(3, 1))
        reference.in_proj_bias.zero_()
        reference.out_proj.weight.copy_(torch.eye(24))
        reference.out_proj.bias.zero_()
    torch.testing.assert_close(layer(x), layer.proj(reference(q, k, v)[0]), rtol=1e-5, atol=1e-5)
