"""What the maps say of the heads, and that the model is left as it was."""

from __future__ import annotations

import math

import pytest
import torch

import nasformer
from attention.nets import block_with, net, pictures
from families.small import SPACES
from nasformer.errors import UserError
from nasformer.report.attention import AttentionMaps, Head, attention_blocks, attention_maps, grid_of, numbered_blocks


def test_many_images_at_once_are_put_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net("trionet"), pictures("trionet")
    block = block_with(model, "local")
    whole = attention_maps(model, x, block)
    monkeypatch.setattr("nasformer.layers.resnet._images_at_once", lambda q, plan: 1)
    torch.testing.assert_close(attention_maps(model, x, block).weights, whole.weights)


def test_the_axes_of_axial_attention() -> None:
    model, x = net("trionet"), pictures("trionet")
    maps = attention_maps(model, x, block_with(model, "width"))
    count = len(maps.heads) // 2
    assert [str(head) for head in maps.heads] == [
        f"{axis} {n + 1}" for axis in ("height", "width") for n in range(count)
    ]
    row, column = 1, 2
    height, width = maps.of((row, column)).split(count, 1)
    assert (height[..., column] > 0).all()
    assert (width[..., row, :] > 0).all()
    for part, rest in ((height, height[..., column]), (width, width[..., row, :])):
        torch.testing.assert_close(part.sum((2, 3)), torch.ones(2, count))
        torch.testing.assert_close(rest.sum(2), torch.ones(2, count))
    assert all(pair.first.axis == pair.second.axis for pair in maps.pairs())
    assert len(maps.pairs()) == 2 * math.comb(count, 2)


def made_up(rows: int = 2, columns: int = 3) -> AttentionMaps:
    """Head 1 looks at itself, head 2 everywhere alike, head 3 always at the first position."""
    count = rows * columns
    weights = torch.zeros(1, 3, count + 1, count + 1)
    weights[0, 0, 1:, 1:] = torch.eye(count)
    weights[0, 1, 1:, 1:] = 1 / count
    weights[0, 2, 1:, 1] = 1
    return AttentionMaps("1.1", (rows, columns), tuple(map(Head, (1, 2, 3))), False, weights)


def test_statistics_of_heads_that_are_known() -> None:
    maps = made_up()
    torch.testing.assert_close(maps.entropy(), torch.tensor([0, math.log2(6), 0]))
    spots = [(row, column) for row in range(2) for column in range(3)]
    everywhere = sum(math.dist(a, b) for a in spots for b in spots) / 36
    corner = sum(math.dist(a, (0, 0)) for a in spots) / 6
    torch.testing.assert_close(maps.distance(), torch.tensor([0, everywhere, corner]))
    expected = torch.eye(3)
    expected[0, 1] = expected[1, 0] = expected[1, 2] = expected[2, 1] = 6**-0.5  # one of six positions
    expected[0, 2] = expected[2, 0] = 1 / 6  # for one of six queries
    torch.testing.assert_close(maps.similarity(), expected)
    pairs = maps.pairs()
    assert (pairs[-1].first.number, pairs[-1].second.number) == (1, 3)
    assert maps.mean_similarity() == pytest.approx((2 * 6**-0.5 + 1 / 6) / 3)
    assert not maps.elsewhere().any()


def test_the_class_token_asks_and_is_seen() -> None:
    model, x = net("autoformer"), pictures("autoformer")
    maps = attention_maps(model, x, "1")
    torch.testing.assert_close(maps.of("cls"), maps.weights[:, :, 0, 1:].unflatten(2, maps.grid))
    torch.testing.assert_close(maps.of((1, 2)), maps.weights[:, :, 1 + maps.grid[1] + 2, 1:].unflatten(2, maps.grid))
    torch.testing.assert_close(maps.elsewhere(), maps.weights[..., 0].mean((0, 2)))
    assert maps.queries.shape[2] == maps.grid[0] * maps.grid[1] + 1
    with pytest.raises(UserError, match="no class token"):
        made_up().of("cls")


def test_a_model_in_training_is_evaluated_and_trains_on() -> None:
    model, x = net("trionet"), pictures("trionet")
    block = attention_blocks(model)[0]
    expected = attention_maps(model, x, block)
    model.train()
    model.head.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.testing.assert_close(attention_maps(model, x, block).weights, expected.weights)
    assert model.training
    assert not model.head.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    model.eval()


def test_another_image_size() -> None:
    space = SPACES["s3-micro"]
    model = space.build(space.root.smallest()).eval()
    model.set_input_size((40, 24))
    maps = attention_maps(model, torch.randn(1, 3, 40, 24), "2.1")
    assert maps.grid == grid_of(model, "stages.1.blocks.0") == (10, 6)
    assert (maps.elsewhere() > 0).all()  # windows of 4 do not cover it without padding
    assert not maps.weights[:, :, 0].any()  # which asks nothing
    torch.testing.assert_close(maps.queries.sum(-1), torch.ones(maps.queries.shape[:-1]))


def test_what_cannot_be_shown() -> None:
    model, x = net("esformer"), pictures("esformer")
    attending = ", ".join(attention_blocks(model))
    with pytest.raises(UserError, match=f"block '1.1' has no attention; these have: {attending}$"):
        nasformer.attention_maps(model, x, "1.1")
    for block in ("9.9", "stage"):
        every = f"there are: {', '.join(numbered_blocks(model))}; with attention: {attending}$"
        with pytest.raises(UserError, match=f"block '{block}' does not exist; {every}"):
            nasformer.attention_maps(model, x, block)
    with pytest.raises(UserError, match=r"this model wants a batch of 3 x 32 x 32"):
        attention_maps(model, x[:, :1], attention_blocks(model)[0])
    for query in ((2, 0), (0, 3), (-1, 0)):
        with pytest.raises(UserError, match=r"outside the map of block 1\.1, which has rows 0 to 1 and columns 0 to 2"):
            made_up().of(query)
    convolutions = SPACES["trionet"].build(nasformer.get_space("trionet-micro").root.smallest())
    with pytest.raises(UserError, match="no block of this model has attention"):
        attention_maps(convolutions, x[..., :16, :16], "1.1")
