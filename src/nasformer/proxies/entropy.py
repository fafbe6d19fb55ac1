"""Token entropy: how many directions tokens fill after each linear layer of a transformer's blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nasformer.proxies.linears import is_attention, is_mlp
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import Inapplicable, proxy
from nasformer.proxies.spectrum import spectral_entropy

BATCH = 4  # 788 tokens at 224 pixels


@proxy(
    "token_entropy",
    formula="sum over qkv, proj, fc1, fc2 of all blocks of the entropy of the normalised eigenvalues of the covariance"
    " of their outputs over tokens and images; double",
    sees="noise (4 images)",
    higher="tokens fill more directions",
    paper="our reading of: Dissecting Representation Structure in Vision Transformers",
)
@torch.no_grad()
def token_entropy(model: nn.Module, probe: Probe) -> float:
    """The paper measures entropy at these four places; its exact formula was not at hand, this one is ours.

    The entropy of the spectrum has no unit and is never negative, so that a further layer cannot lower the sum. The
    differential entropy of a Gaussian (log of the standard deviations) would depend on the scale of the initial
    weights and be negative for small ones: deeper nets would then score lower, whatever they compute.
    """
    entropies: list[float] = []

    def measure(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        entropies.append(spectral_entropy(output.reshape(-1, output.shape[-1])))

    layers = [m for name, m in model.named_modules() if is_attention(name, m) or is_mlp(name, m)]
    if not layers:
        raise Inapplicable("the model has no linear layers named attn.* or mlp.*")
    handles = [layer.register_forward_hook(measure) for layer in layers]
    try:
        model(probe.noise("token entropy", min(BATCH, len(probe.images))))
    finally:
        for handle in handles:
            handle.remove()
    return sum(entropies)
