"""Export: a folder from which a model can be used anywhere. It appears whole, checked, or not at all."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.export import graphs
from nasformer.export.card import model_card
from nasformer.export.standalone import standalone_source
from nasformer.families.base import Backbone
from nasformer.families.storage import CONFIG, WEIGHTS, input_shape, load_model, save_model
from nasformer.utils.files import read_json, write_text

# ----------------------------------------------------------------------------------------------------------------------
# Exported files are believed when they were loaded again and gave the model's own logits.
# ----------------------------------------------------------------------------------------------------------------------

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


FORMATS = {"python": "model.py", "pt2": "model.pt2", "onnx": "model.onnx"}
CARD = "README.md"


@dataclass
class Exported:
    """What lies in the folder: for each file that can be run, the largest difference of its logits to the model's.

    None means that the file could not be run here; `notes` says why, and what could not be written.
    """

    folder: Path
    differences: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def export_model(
    model: Backbone,
    folder: str | Path,
    facts: Mapping[str, Any] | None = None,
    formats: Sequence[str] = tuple(FORMATS),
) -> Exported:
    """Writes weights, config, model card and the chosen formats, and checks that each gives the model's logits.

    Args:
        folder: A new folder, or that of an earlier export or extraction, which is replaced.
        facts: What is known about the model: mean, std, classes, space, accuracies ... They go into config and card.
        formats: Any of python (a file that needs only torch), pt2 (torch.export) and onnx.
    """
    folder = Path(folder)
    check_formats(formats)
    check_folder(folder)
    draft = folder.resolve().parent / f".{folder.resolve().name}.{os.getpid()}.tmp"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        done = write_checked(copy.deepcopy(model).cpu().float().eval(), draft, dict(facts or {}), formats)
        move(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Exported(folder, done.differences, done.notes)


def check_formats(formats: Sequence[str]) -> None:
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise UserError(f"unknown format {', '.join(unknown)}; there are: {', '.join(FORMATS)}")


def check_folder(folder: Path) -> None:
    """Nobody's README or config is overwritten, and no run's."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder to export to")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / CONFIG).exists() or "family" not in read_json(folder / CONFIG):
        raise UserError(f"{folder} has other things in it than a model; export to another folder")


def write_checked(model: Backbone, folder: Path, facts: dict[str, Any], formats: Sequence[str]) -> Exported:
    batches = random_batches(input_shape(model))
    expected = logits_of(model, batches)
    done = Exported(folder)
    save_model(model, folder, **facts)
    done.differences[WEIGHTS] = check(WEIGHTS, logits_of(load_model(folder), batches), expected)
    write_formats(model, facts, formats, done)
    foreign = [FORMATS[name] for name in ("python", "pt2") if name in formats]
    for file, found in (logits_elsewhere(folder, foreign, batches) if foreign else {}).items():
        done.differences[file] = check(file, found, expected)
    onnx = folder / FORMATS["onnx"]
    if onnx.exists() and graphs.has_onnxruntime():
        done.differences[onnx.name] = check(onnx.name, graphs.run_onnx(onnx, batches), expected)
    elif onnx.exists():
        done.differences[onnx.name] = None
        done.notes.append(f"model.onnx is unchecked, since onnxruntime is missing: {graphs.INSTALL_ONNX}")
    write_text(folder / CARD, model_card(model, facts, done.differences))
    return done


def write_formats(model: Backbone, facts: Mapping[str, Any], formats: Sequence[str], done: Exported) -> None:
    if "python" in formats:
        write_text(done.folder / FORMATS["python"], standalone_source(model, facts))
    if not {"pt2", "onnx"} & set(formats):
        return
    program = graphs.traced(model, torch.zeros(2, *input_shape(model)))
    if "pt2" in formats:
        graphs.write_pt2(program, done.folder / FORMATS["pt2"])
    if "onnx" in formats and graphs.has_onnx():
        graphs.write_onnx(program, done.folder / FORMATS["onnx"])
    elif "onnx" in formats:
        done.notes.append(f"model.onnx was not written, since onnx or onnxscript is missing: {graphs.INSTALL_ONNX}")


def move(draft: Path, folder: Path) -> None:
    """Files of an earlier export that are not in this one go, for they are of another model."""
    if not folder.exists():
        os.replace(draft, folder)
        return
    for name in (*FORMATS.values(), CARD):
        if not (draft / name).exists():
            (folder / name).unlink(missing_ok=True)
    for file in sorted(draft.iterdir()):
        os.replace(file, folder / file.name)
