"""Local attention in tiles against its formula, written out position by position."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.layers.resnet import local_attention

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def formula(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int) -> Tensor:
    height, width = q.shape[-2:]
    half = window // 2
    rows = []
    for y in range(height):
        for x in range(width):
            near = [
                (a, b)
                for a in range(max(0, y - half), min(height, y + half + 1))
                for b in range(max(0, x - half), min(width, x + half + 1))
            ]
            keys = torch.stack([k[..., a, b] + positions[..., a - y + half, b - x + half] for a, b in near])
            weights = torch.einsum("bhd,nbhd->nbh", q[..., y, x], keys).softmax(0)
            rows.append(torch.einsum("nbh,nbhd->bhd", weights, torch.stack([v[..., a, b] for a, b in near])))
    return torch.stack(rows, -1).unflatten(-1, (height, width))


def tensors(
    size: tuple[int, int], window: int, batch: int = 2, heads: int = 2, dtype: torch.dtype = torch.double
) -> Inputs:
    torch.manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype).requires_grad_()

    q, k, v = (random(batch, heads, dim, *size) for dim in (3, 3, 5))
    return q, k, v, random(heads, 3, window, window)


def gradients(y: Tensor, inputs: Inputs) -> list[Tensor]:
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return list(torch.autograd.grad((y * weights).sum(), inputs))


@pytest.mark.parametrize("tile", [None, 2, 5], ids=lambda tile: f"tile{tile}")
@pytest.mark.parametrize(
    ("size", "window"), [((9, 9), 3), ((6, 11), 7), ((6, 5), 1), ((4, 4), 3), ((3, 2), 7), ((1, 7), 3), ((1, 1), 3)]
)
def test_equals_formula_forward_and_backward(size: tuple[int, int], window: int, tile: int | None) -> None:
    inputs = tensors(size, window)
    ours, literal = local_attention(*inputs, window, tile=tile), formula(*inputs, window)
    torch.testing.assert_close(ours, literal, rtol=1e-11, atol=1e-11)
    for a, b in zip(gradients(ours, inputs), gradients(literal, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_large_map_goes_in_tiles_by_itself() -> None:
    inputs = tensors((18, 17), 5, batch=1)
    ours, literal = local_attention(*inputs, 5), formula(*inputs, 5)
    torch.testing.assert_close(ours, literal, rtol=1e-11, atol=1e-11)


def test_a_batch_done_in_parts_equals_a_batch_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tensors((6, 5), 3, batch=5)
    at_once = local_attention(*inputs, 3)
    monkeypatch.setattr("nasformer.layers.resnet._images_at_once", lambda q, plan: 2)
    in_parts = local_attention(*inputs, 3)
    torch.testing.assert_close(in_parts, at_once)
    for a, b in zip(gradients(in_parts, inputs), gradients(at_once, inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("tile", [4, 16])
def test_channels_that_only_fill_up_change_nothing(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tensors((6, 9), 3)
    plain = local_attention(*inputs, 3, tile=tile)
    monkeypatch.setattr("nasformer.layers.resnet._missing_channels", lambda x: -x.shape[2] % 8)
    filled = local_attention(*inputs, 3, tile=tile)
    torch.testing.assert_close(filled, plain)
    for a, b in zip(gradients(filled, inputs), gradients(plain, inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("tile", [2, 8])
def test_first_and_second_derivatives(tile: int) -> None:
    inputs = tensors((2, 3), 3, batch=1, heads=1)

    def work(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        return local_attention(q, k, v, positions, 3, tile=tile)

    assert torch.autograd.gradcheck(work, inputs)
    assert torch.autograd.gradgradcheck(work, inputs)


@pytest.mark.parametrize("tile", [4, 16])
def test_bf16_autocast_is_close(tile: int) -> None:
    inputs = tensors((9, 9), 7, dtype=torch.float32)
    exact = local_attention(*inputs, 7, tile=tile)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = local_attention(*inputs, 7, tile=tile)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() < 0.02 * exact.norm()
    for a, b in zip(gradients(rounded, inputs), gradients(exact, inputs), strict=True):
        assert (a - b).norm() < 0.03 * b.norm()


@pytest.mark.parametrize("tile", [4, 16])
def test_dropout_drops_weights_and_keeps_the_mean(tile: int) -> None:
    inputs = tensors((6, 6), 3)
    plain = local_attention(*inputs, 3, tile=tile)
    with torch.no_grad():
        dropped = torch.stack([local_attention(*inputs, 3, dropout=0.3, tile=tile) for _ in range(400)])
    assert not torch.allclose(dropped[0], plain)
    torch.testing.assert_close(dropped.mean(0), plain, rtol=0, atol=0.3)


def test_what_inference_mode_leaves_behind_serves_training() -> None:
    inputs = tensors((5, 6), 3)
    with torch.inference_mode():
        expected = local_attention(*inputs, 3)
    y = local_attention(*inputs, 3)
    y.sum().backward()
    torch.testing.assert_close(y, expected.clone())


def test_a_window_without_centre_is_refused() -> None:
    with pytest.raises(UserError, match="odd"):
        local_attention(*tensors((4, 4), 4), 4)


class Local(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.positions = nn.Parameter(torch.randn(2, 3, window, window))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x.unflatten(1, (3, 2, 3)).unbind(1)
        return local_attention(q, k, v, self.positions, self.window)


@pytest.mark.parametrize("size", [6, 17])
def test_exports_with_any_batch(size: int) -> None:
    model, x = Local(5), torch.randn(2, 18, size, size)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    more = torch.randn(3, 18, size, size)
    torch.testing.assert_close(exported(more), model(more))


@pytest.mark.parametrize("size", [6, pytest.param(17, marks=pytest.mark.slow)])
def test_compiles_to_one_graph(size: int) -> None:
    model, x = Local(5), torch.randn(2, 18, size, size)
    y = model(x)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(x), y)
    (expected,) = torch.autograd.grad(y.square().sum(), [model.positions])
    (found,) = torch.autograd.grad(compiled(x).square().sum(), [model.positions])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(model(x), y)  # and left nothing traced behind


def test_works_out_shapes_on_meta_and_through_functional_call() -> None:
    model, x = Local(7), torch.randn(2, 18, 9, 18)
    assert model.to("meta")(x.to("meta")).shape == (2, 2, 3, 9, 18)
    positions = torch.randn(2, 3, 7, 7)
    q, k, v = x.unflatten(1, (3, 2, 3)).unbind(1)
    found = torch.func.functional_call(model, {"positions": positions}, (x,))
    torch.testing.assert_close(found, local_attention(q, k, v, positions, 7))
