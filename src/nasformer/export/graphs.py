"""Graph formats: a model as torch.export's .pt2 and as ONNX, for any number of images at a time.

Files are made in memory and then written, since on a full disk torch's own writers end the process.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
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


def trace(model: nn.Module, images: Tensor) -> ExportedProgram:
    """The model as one graph; images give the shape, of which the batch stays free."""
    with quiet():
        program = torch.export.export(model, (images,), dynamic_shapes=({0: Dim("batch")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # full of paths of the machine that exports
    return program


def pt2_bytes(program: ExportedProgram) -> bytes:
    """The content of a .pt2 file."""
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer)
    return buffer.getvalue()


def onnx_bytes(program: ExportedProgram, metadata: Mapping[str, str] | None = None) -> bytes:
    """The content of an ONNX file, with custom metadata in it."""
    if not has_onnx():
        raise UserError(f"writing ONNX needs the packages onnx and onnxscript: {INSTALL_ONNX}")
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT], "dynamic_shapes": ({0: "batch"},)}
    with quiet():
        exported = torch.onnx.export(program, (), dynamo=True, external_data=False, verbose=False, **names)
    assert exported is not None
    exported.model.metadata_props.update(metadata or {})
    return exported.model_proto.SerializeToString()


def run_onnx(content: bytes, batches: list[Tensor]) -> list[Tensor]:
    """The logits of ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0]) for images in batches]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence exporters, which print their inner workings; what matters is whether the file gives the same logits."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
