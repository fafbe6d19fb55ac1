"""Reads the published AutoFormer supernet checkpoints, so that a downloaded supernet can be searched at once.

Their layout: rows of q, k and v interleaved modulo 3 in one matrix, its bias plain, other names, tensors wider than the
largest member. The bias was trained under contiguous slicing, so the space takes ``qkv_bias_sharing="contiguous"``.
"""

from __future__ import annotations

import argparse
import pathlib
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from nasformer.errors import UserError

NAMES = (
    (r"^patch_embed_super\.", "patch_embed."),
    (r"^(cls_token|pos_embed)$", r"patch_embed.\1"),
    (r"^head\.", "head.fc."),
    (r"\.attn_layer_norm\.", ".norm1."),
    (r"\.ffn_layer_norm\.", ".norm2."),
    (r"\.(fc1|fc2)\.", r".mlp.\1."),
    (r"rel_pos_embed_(k|v)\.embeddings_table_v$", r"rel_pos_\1.vertical"),
    (r"rel_pos_embed_(k|v)\.embeddings_table_h$", r"rel_pos_\1.horizontal"),
)


def is_official(state: Mapping[str, Tensor]) -> bool:
    return "patch_embed_super.proj.weight" in state


def from_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under our names, with the rows of q, k and v each together."""
    return {our_name(name): deinterleave(name, weight) for name, weight in state.items()}


def our_name(name: str) -> str:
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def deinterleave(name: str, weight: Tensor) -> Tensor:
    if not name.endswith("qkv.weight"):
        return weight
    return torch.cat([weight[part::3] for part in range(3)])


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a PyTorch checkpoint, without running code from it."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # The published files carry their command line beside the weights: plain values, safe to read.
        with torch.serialization.safe_globals([argparse.Namespace, pathlib.PosixPath]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"no checkpoint at {path}; give a .safetensors or .pth file") from None
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} cannot be read as weights ({reason}); is it complete?") from error
    state = content.get("model", content) if isinstance(content, dict) else content
    if not isinstance(state, dict):
        raise UserError(f"{path} holds a {type(state).__name__}, expected weights by name, as state_dict() gives them")
    return {name: weight for name, weight in state.items() if isinstance(weight, Tensor)}
