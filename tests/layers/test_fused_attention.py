"""The kernel for evaluation computes what the layer computes. It is interpreted here, as it runs on a GPU alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("triton")
SCRIPT = """
import torch
from nasformer.layers import fused_attention
from nasformer.layers.attention import RelativeAttention

torch.manual_seed(0)
for grid, heads, head_dim, max_distance in (((4, 4), 3, 16, 14), ((9, 8), 2, 32, 3)):
    layer = RelativeAttention(24, heads, head_dim, grid, max_distance).half().float()
    x = torch.randn(2, grid[0] * grid[1] + 1, 24).half()
    with torch.no_grad():
        expected = layer(x.float())
        computed = fused_attention.for_evaluation(layer).half()(x)
    assert type(layer) is fused_attention.FusedRelativeAttention
    difference = (computed.float() - expected).abs().max() / expected.abs().max()
    assert difference < 2e-3, difference
    assert difference > 0  # half precision is asked for, or the kernel would not have run
"""


def test_kernel_gives_what_the_layer_gives() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
