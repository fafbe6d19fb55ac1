"""SNIP, gradient norm, plain, GraSP and ZiCo against the same formulas written out in numpy or by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.blocks import TransformerBlock
from nasformer.proxies.parts import Probe, noise_probe
from nasformer.proxies.registry import Inapplicable
from nasformer.proxies.saliency import CHUNK, cross_entropy_gradients, grad_norm, grasp, plain, snip, zico

Array = np.ndarray
Score = Callable[[nn.Module, Probe], float]

BATCH = 2 * CHUNK["cpu"] + 3  # neither one chunk nor whole chunks
each_score = pytest.mark.parametrize("score", [snip, grad_norm, plain, grasp, zico])


def double_probe(batch: int = BATCH, shape: tuple[int, int, int] = (1, 2, 2), seed: int = 0) -> Probe:
    probe = noise_probe(shape, num_classes=3, batch_size=batch, seed=seed)
    return Probe(probe.images.double(), probe.labels, seed)


def two_layers(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval()


def numpy_gradients(first: Array, bias: Array, second: Array, head_bias: Array, probe: Probe) -> tuple[Array, Array]:
    """Backpropagation through `two_layers`, by hand."""
    x, labels = probe.images.flatten(1).numpy(), probe.labels.numpy()
    hidden = np.maximum(x @ first.T + bias, 0)
    logits = hidden @ second.T + head_bias
    error = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error[np.arange(len(x)), labels] -= 1
    error /= len(x)
    back = (error @ second) * (hidden > 0)
    return back.T @ x, error.T @ hidden


def numbers(model: nn.Sequential) -> tuple[Array, Array, Array, Array]:
    first, second = model[1], model[3]
    return tuple(x.detach().numpy().copy() for x in (first.weight, first.bias, second.weight, second.bias))


def test_snip_grad_norm_and_plain_are_their_formulas() -> None:
    model, probe = two_layers(), double_probe()
    first, bias, second, head_bias = numbers(model)
    g1, g2 = numpy_gradients(first, bias, second, head_bias, probe)
    assert snip(model, probe) == pytest.approx(np.abs(g1 * first).sum() + np.abs(g2 * second).sum())
    assert grad_norm(model, probe) == pytest.approx(np.sqrt((g1**2).sum()) + np.sqrt((g2**2).sum()))
    assert plain(model, probe) == pytest.approx((g1 * first).sum() + (g2 * second).sum())


def test_grasp_is_the_change_of_the_gradient_along_itself() -> None:
    model, probe = two_layers(), double_probe()
    first, bias, second, head_bias = numbers(model)
    g1, g2 = numpy_gradients(first, bias, second, head_bias, probe)
    step = 1e-5
    ahead = numpy_gradients(first + step * g1, bias, second + step * g2, head_bias, probe)
    behind = numpy_gradients(first - step * g1, bias, second - step * g2, head_bias, probe)
    h1, h2 = ((a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True))
    assert grasp(model, probe) == pytest.approx(-(first * h1).sum() - (second * h2).sum(), rel=1e-6)


class Attending(nn.Module):
    """Patches, one transformer block, and a head on the class token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(1, 8, 2, 2)
        self.block = TransformerBlock(8, num_heads=2, head_dim=4, hidden_dim=16, grid=(1, 3), max_distance=2)
        self.head = nn.Linear(8, 3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embed(x).flatten(2).mT)[:, 0])


def test_grasp_differentiates_attention_twice() -> None:
    model, probe = Attending().double().eval(), double_probe(5, (1, 2, 8))
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    start = [layer.weight.detach().clone() for layer in layers]

    def gradient_at(step: float, direction: list[Tensor]) -> list[Tensor]:
        for layer, weight, along in zip(layers, start, direction, strict=True):
            layer.weight.data = weight + step * along
        loss = F.cross_entropy(model(probe.images), probe.labels)
        return list(torch.autograd.grad(loss, [layer.weight for layer in layers]))

    gradient = gradient_at(0, start)
    ahead, behind = gradient_at(1e-5, gradient), gradient_at(-1e-5, gradient)
    expected = -sum(((a - b) / 2e-5 * w).sum().item() for a, b, w in zip(ahead, behind, start, strict=True))
    gradient_at(0, start)
    assert grasp(model, probe) == pytest.approx(expected, rel=1e-5)


def test_grasp_says_so_where_a_layer_has_no_second_derivative() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Hardsigmoid()).double().eval()
    with pytest.raises(Inapplicable, match="differentiated twice"):
        grasp(model, double_probe())


def test_snip_counts_the_patch_embedding_and_the_head() -> None:
    model, probe = Attending().double().eval(), double_probe(5, (1, 2, 8))
    F.cross_entropy(model(probe.images), probe.labels).backward()
    block = model.block
    weights = [x.weight for x in (model.embed, block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)]
    expected = [(w * w.grad).abs().sum().item() for w in [*weights, model.head.weight] if w.grad is not None]
    assert len(expected) == 6
    assert snip(model, probe) == pytest.approx(sum(expected))


def numpy_zico(gradients: Sequence[tuple[Array, ...]]) -> float:
    score = 0.0
    for layer in zip(*gradients, strict=True):
        a, b = (gradient.ravel() for gradient in layer)
        mean, deviation = (np.abs(a) + np.abs(b)) / 2, np.abs(a - b) / 2
        score += np.log(sum(m / d for m, d in zip(mean, deviation, strict=True) if d > 0))
    return score


def test_zico_is_its_formula_and_leaves_out_what_does_not_vary() -> None:
    model, probe = two_layers(), double_probe()
    model[1].bias.data[0] = -100  # this unit is dead: its weights have no gradient in any batch
    half = BATCH // 2  # the odd image has no batch
    halves = [Probe(probe.images[i : i + half], probe.labels[i : i + half]) for i in (0, half)]
    gradients = [numpy_gradients(*numbers(model), half) for half in halves]
    assert not gradients[0][0][0].any()
    assert zico(model, probe) == pytest.approx(numpy_zico(gradients))


def test_zico_normalises_each_half_by_its_own_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))
    half = CHUNK["cpu"] + 2  # more than one chunk
    model, probe = model.double().eval(), double_probe(2 * half)
    conv, head = model[0], model[4]
    gradients = []
    for start in (0, half):
        images, labels = probe.images[start : start + half], probe.labels[start : start + half]
        normalised = F.batch_norm(conv(images), None, None, training=True)
        loss = F.cross_entropy(head(normalised.flatten(1)), labels)
        gradients.append(tuple(g.numpy() for g in torch.autograd.grad(loss, [conv.weight, head.weight])))
    assert zico(model, probe) == pytest.approx(numpy_zico(gradients))


def test_zico_needs_two_different_batches() -> None:
    model, probe = two_layers(), double_probe(4)
    with pytest.raises(Inapplicable, match="at least 2 images"):
        zico(model, Probe(probe.images[:1], probe.labels[:1]))
    with pytest.raises(Inapplicable, match="at least 4 images"):
        zico(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3)).double(), double_probe(3))
    with pytest.raises(Inapplicable, match="the same"):
        zico(model, Probe(probe.images.repeat(2, 1, 1, 1), probe.labels.repeat(2)))


def test_gradients_do_not_depend_on_chunks() -> None:
    model, probe = two_layers(), double_probe()
    cut = cross_entropy_gradients(model, probe.images, probe.labels, chunk=4)
    whole = cross_entropy_gradients(model, probe.images, probe.labels, chunk=BATCH)
    assert cut.keys() == whole.keys() == {"1", "3"}
    for name, gradient in whole.items():
        torch.testing.assert_close(cut[name], gradient)


class Idle(nn.Module):
    """A model with a layer that it never uses."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.idle = model, nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


@each_score
def test_frozen_and_idle_layers_change_nothing(score: Score) -> None:
    expected = score(two_layers(), double_probe())
    assert score(two_layers().requires_grad_(False), double_probe()) == expected
    assert score(Idle(two_layers()), double_probe()) == expected


@each_score
def test_a_model_without_weights_has_no_score(score: Score) -> None:
    with pytest.raises(Inapplicable, match="neither linear nor convolutional"):
        score(nn.Flatten(), double_probe())
    with pytest.raises(Inapplicable, match="no gradient"):
        score(Idle(nn.Flatten()), double_probe())


@each_score
def test_what_is_not_a_number_stays_so(score: Score) -> None:
    probe = double_probe()
    assert np.isnan(score(two_layers(), Probe(probe.images * float("nan"), probe.labels)))
