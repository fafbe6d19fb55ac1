"""Which linear layers belong to attention and which to the feed-forward half of a block, in any transformer.

By name, as timm and we write them: ``attn.qkv``, ``attn.proj``; ``mlp.fc1``, ``mlp.fc2``. The head, convolutions and
what lies between stages belong to neither, as TF-TAS has it.
"""

from __future__ import annotations

from torch import nn


def is_attention(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and _parent(name).endswith("attn")


def is_mlp(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and _parent(name).endswith("mlp")


def attention_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Queries, keys, values and output projections, by name."""
    return {name: module for name, module in model.named_modules() if is_attention(name, module)}  # type: ignore[misc]


def mlp_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """The layers of the feed-forward halves, by name."""
    return {name: module for name, module in model.named_modules() if is_mlp(name, module)}  # type: ignore[misc]


def _parent(name: str) -> str:
    return name.rpartition(".")[0].rpartition(".")[2]
