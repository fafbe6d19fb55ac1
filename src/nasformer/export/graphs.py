"""A model as a graph: torch.export's .pt2 and ONNX, for any number of images at a time."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from nasformer.errors import UserError

INPUT, OUTPUT = "images", "logits"
INSTALL_ONNX = "pip install 'nasformer[onnx]'"


def has_onnx() -> bool:
    """Whether ONNX files can be written."""
    return find_spec("onnx") is not None and find_spec("onnxscript") is not None


def has_onnxruntime() -> bool:
    """Whether ONNX files can be run."""
    return find_spec("onnxruntime") is not None


def traced(model: nn.Module, images: Tensor) -> ExportedProgram:
    """The model as one graph; images give the shape, of which the batch stays free."""
    with quiet():
        program = torch.export.export(model, (images,), dynamic_shapes=({0: Dim("batch")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # full of paths of the machine that exports
    return program


def write_pt2(program: ExportedProgram, path: Path) -> None:
    with quiet():
        torch.export.save(program, path)


def write_onnx(program: ExportedProgram, path: Path) -> None:
    if not has_onnx():
        raise UserError(f"writing ONNX needs the packages onnx and onnxscript: {INSTALL_ONNX}")
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT], "dynamic_shapes": ({0: "batch"},)}
    with quiet():
        torch.onnx.export(program, (), str(path), dynamo=True, external_data=False, verbose=False, **names)


def run_onnx(path: Path, batches: list[Tensor]) -> list[Tensor]:
    """The logits of ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0]) for images in batches]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Exporters talk of their own inner workings; what matters here is whether the file gives the same logits."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
