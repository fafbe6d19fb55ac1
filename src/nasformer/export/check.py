"""Exported files are believed when they were loaded again and gave the model's own logits."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from nasformer.errors import UserError

TOLERANCE = 1e-4

STRANGER = """
import os, sys
folder, work, packages, threads, *files = sys.argv[1:]
for name in ("nasformer", "timm", "safetensors", "torchvision", "huggingface_hub"):
    sys.modules[name] = None
sys.path += [folder, packages]
import torch
torch.set_num_threads(int(threads))
batches, found = torch.load(os.path.join(work, "images.pt"), weights_only=True), {}
for file in files:
    if file == "model.py":
        import model
        network = model.load(os.path.join(folder, "model.safetensors"))
    else:
        network = torch.export.load(os.path.join(folder, file)).module()
    with torch.no_grad():
        found[file] = [network(images) for images in batches]
torch.save(found, os.path.join(work, "logits.pt"))
"""
"""A process that knows torch and cannot import us, nor what we are built on."""


def random_batches(shape: tuple[int, int, int], sizes: tuple[int, ...] = (1, 3)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, *shape, generator=generator) for size in sizes]


@torch.no_grad()
def logits_of(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    return [model(images) for images in batches]


def logits_elsewhere(folder: Path, files: list[str], batches: list[Tensor]) -> dict[str, list[Tensor]]:
    """What model.py and model.pt2 give in a process of their own, without nasformer."""
    packages = str(Path(torch.__file__).parents[1])
    with tempfile.TemporaryDirectory() as work:
        torch.save(batches, Path(work) / "images.pt")
        told = [str(folder.resolve()), work, packages, str(torch.get_num_threads()), *files]
        done = subprocess.run(
            [sys.executable, "-I", "-B", "-c", STRANGER, *told], cwd=work, capture_output=True, text=True
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise UserError(f"{' and '.join(files)} cannot be used without nasformer ({reason}); nothing was exported")
        return torch.load(Path(work) / "logits.pt", weights_only=True)


def largest_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Infinite where shapes differ or something is not a number."""
    if [one.shape for one in found] != [one.shape for one in expected]:
        return float("inf")
    differences = torch.cat([(a - b).abs().flatten() for a, b in zip(found, expected, strict=True)])
    return float(differences.nan_to_num(nan=float("inf")).max())


def check(file: str, found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of any logit; an error if it is too large."""
    difference = largest_difference(found, expected)
    if difference > TOLERANCE:
        raise UserError(
            f"logits of {file} differ from the model's by {difference:.1e}, more than {TOLERANCE:.0e}; nothing was "
            "exported. Leave this format out with --formats, and please report it"
        )
    return difference
