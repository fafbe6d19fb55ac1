"""SynFlow and LogSynflow against products of matrices, and SynFlow's law of conservation."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nasformer.models.registry import get_space
from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable
from nasformer.proxies.saliency import linearise, logit_gradients, logsynflow, synflow

PROBE = noise_probe((1, 2, 2), num_classes=3, batch_size=2)
WIDTHS = (4, 6, 5, 3)


def chain(bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers).eval()


def linears(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def matrices(model: nn.Module) -> list[np.ndarray]:
    return [np.abs(layer.weight.detach().double().numpy()) for layer in linears(model)]


def chain_gradients(weights: list[np.ndarray]) -> list[np.ndarray]:
    """dR/dW of a chain of positive matrices: what goes out after W times what came in before it."""
    gradients = []
    for i in range(len(weights)):
        before, after = np.ones(WIDTHS[0]), np.ones(WIDTHS[-1])
        for weight in weights[:i]:
            before = weight @ before
        for weight in reversed(weights[i + 1 :]):
            after = after @ weight
        gradients.append(np.outer(after, before))
    return gradients


def test_the_flow_is_the_product_of_positive_matrices_once_a_layer() -> None:
    model = chain()
    first, second, third = matrices(model)
    assert any((layer.weight < 0).any() for layer in linears(model))
    output = (third @ second @ first).sum()
    assert synflow(model, PROBE) == pytest.approx(math.log10(3 * output))


def test_every_layer_of_a_linear_net_has_the_same_flow() -> None:
    model = chain()
    linearise(model)
    gradients = logit_gradients(model, PROBE.ones().double())
    flows = [
        (gradients[name] * layer.weight).sum().item() for name, layer in model.named_modules() if name in gradients
    ]
    assert len(flows) == 3
    assert flows == pytest.approx([flows[0]] * 3)


def test_biases_are_made_positive_too() -> None:
    model = chain(bias=True)
    (w1, w2, w3), (b1, b2, _) = (
        matrices(model),
        [layer.bias.detach().abs().double().numpy() for layer in linears(model)],
    )
    h1 = w1.sum(1) + b1
    h2 = w2 @ h1 + b2
    flow = (w3 @ w2 @ w1).sum() + (w3 @ w2 @ h1).sum() + (w3 @ h2).sum()
    assert synflow(model, PROBE) == pytest.approx(math.log10(flow))


def convolutions(*norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    conv, head = nn.Conv2d(1, 4, 1), nn.Linear(16, 3)
    return nn.Sequential(conv, *norm, nn.ReLU(), nn.Flatten(), head).eval()


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_batch_norm_is_bypassed(options: dict[str, bool]) -> None:
    norm = nn.BatchNorm2d(4, **options)
    for tensor in [*norm.parameters(), *norm.buffers()]:
        tensor.data.fill_(3)
    assert synflow(convolutions(norm), PROBE) == pytest.approx(synflow(convolutions(), PROBE), abs=1e-12)


def test_flows_beyond_single_precision_have_a_logarithm() -> None:
    model = nn.Sequential(nn.Flatten(), *[nn.Linear(4, 4, bias=False) for _ in range(60)]).eval()
    for layer in linears(model):
        nn.init.constant_(layer.weight, -2500.0)  # a factor of 10^4 a layer
    assert synflow(model, PROBE) == pytest.approx(math.log10(60 * 4) + 60 * 4)


def test_no_flow_has_no_logarithm() -> None:
    model = chain()
    nn.init.zeros_(linears(model)[1].weight)
    with pytest.raises(Inapplicable, match="no signal"):
        synflow(model, PROBE)


class Masked(nn.Module):
    """A constant of the architecture, which nobody learned."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([-3.0, 1.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mask


def test_constants_keep_their_sign() -> None:
    model = nn.Sequential(Masked(), nn.Linear(3, 3))
    linearise(model)
    assert model[0].mask.tolist() == [-3.0, 1.0, 1.0]
    assert all((parameter >= 0).all() and parameter.dtype == torch.double for parameter in model.parameters())


def drawn(shape: torch.Size, source: torch.Generator) -> Tensor:
    return nn.init.kaiming_normal_(torch.empty(shape), mode="fan_out", nonlinearity="relu", generator=source)


def test_logsynflow_of_a_chain() -> None:
    model, source = chain(bias=True), PROBE.generator("logsynflow")
    weights = [np.abs(drawn(layer.weight.shape, source).double().numpy()) for layer in linears(model)]
    pairs = zip(weights, chain_gradients(weights), strict=True)
    assert logsynflow(model, PROBE) == pytest.approx(sum((weight * np.log(1 + grad)).sum() for weight, grad in pairs))


class Against(nn.Module):
    """Turns everything round, so that gradients are negative."""

    def forward(self, x: Tensor) -> Tensor:
        return -2.0 * x


def test_logsynflow_of_negative_gradients_is_finite() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), Against(), nn.Linear(6, 3)).eval()
    source = PROBE.generator("logsynflow")
    first, second = (drawn(layer.weight.shape, source).double().abs().requires_grad_() for layer in linears(model))
    gradients = torch.autograd.grad((second @ (-2 * first.sum(1))).sum(), [first, second])
    assert min(gradient.min() for gradient in gradients) < -1  # where log(1 + g) is undefined
    pairs = zip((first, second), gradients, strict=True)
    assert logsynflow(model, PROBE) == pytest.approx(sum((w * (1 + g.abs()).log()).sum().item() for w, g in pairs))


def test_logsynflow_leaves_out_batch_norm() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 5.0)
    layers = [nn.Flatten(), nn.Linear(4, 6), nn.Linear(6, 3)]
    plain, normed = nn.Sequential(*layers), nn.Sequential(*layers[:2], norm, layers[2]).eval()
    assert logsynflow(deepcopy(plain), PROBE) == pytest.approx(logsynflow(normed, PROBE))


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6), nn.GroupNorm(2, 6), nn.LayerNorm(6, bias=False)])
def test_to_logsynflow_other_norms_are_constant_scales(norm: nn.Module) -> None:
    """Whatever they have learned: gains become 1, as weights are drawn anew."""
    nn.init.constant_(norm.weight, 3.0)
    model, source = (
        nn.Sequential(nn.Flatten(), nn.Linear(4, 6), norm, nn.Linear(6, 3)).eval(),
        PROBE.generator("logsynflow"),
    )
    first, second = (drawn(layer.weight.shape, source).double().abs().requires_grad_() for layer in linears(model))
    scale = 1.0 / first.detach().sum(1).square().mean().sqrt()
    gradients = torch.autograd.grad((second @ (first.sum(1) * scale)).sum(), [first, second])
    pairs = zip((first, second), gradients, strict=True)
    assert logsynflow(model, PROBE) == pytest.approx(sum((w * (1 + g).log()).sum().item() for w, g in pairs))


def test_logsynflow_sees_blocks_whose_layer_scale_starts_near_zero() -> None:
    """All ConvNeXt blocks of a net with expansion 6 instead of 2; at 1e-6 the score fell by 0.04 %."""
    space = get_space("esformer-s0", img_size=32, num_classes=10)
    probe = noise_probe((3, 32, 32), num_classes=10, batch_size=2)
    fixed = {name: [choice.values[0]] for name, choice in space.root.dimensions()}
    archs = [
        space.with_choices(fixed | {name: [expansion] for name in fixed if name.endswith("convnext.expansion")})
        for expansion in (2, 6)
    ]
    small, large = (logsynflow(each.build(each.root.smallest()).eval(), probe) for each in archs)
    assert large > 1.1 * small


def test_logsynflow_of_a_transformer_is_finite_and_grows_with_it() -> None:
    space = get_space("autoformer-tiny", img_size=32, patch_size=8)
    probe = noise_probe((3, 32, 32), num_classes=1000, batch_size=2)
    small, large = (
        logsynflow(space.build(arch).eval(), probe) for arch in (space.root.smallest(), space.root.largest())
    )
    assert math.isfinite(large)
    assert large > small > 0
