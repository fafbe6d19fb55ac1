"""Exports: every format gives the model's logits, and the folder appears whole or not at all."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.export import ExportedProgram

import small_run
import tiny
from export.small import FAMILIES, small_model, small_of
from families.small import images
from nasformer.cli.main import main
from nasformer.errors import UserError
from nasformer.export import bundle
from nasformer.export.bundle import (
    Inputs,
    check,
    export_model,
    has_onnx,
    has_onnxruntime,
    largest_difference,
    logits_of,
    logits_without_nasformer,
    onnx_bytes,
    pt2_bytes,
    run_onnx,
    trace,
    write_for_timm,
)
from nasformer.models.base import Backbone
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.models.storage import facts_in, fresh_model, load_model, save_model
from nasformer.tasks.options import TaskOptions
from nasformer.tasks.registry import get_task
from nasformer.utils.files import read_json

needs_onnx = pytest.mark.skipif(not (has_onnx() and has_onnxruntime()), reason="needs the extra onnx")
FACTS = {"mean": [0.5], "std": [0.25], "classes": list("abcdefghij"), "space": "autoformer-micro"}
FILES = ["README.md", "config.json", "model.onnx", "model.pt2", "model.py", "model.safetensors"]


def tiny_model() -> Backbone:
    return tiny.supernet().extract(tiny.SMALLEST).eval()


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Graphs of every family


@cache
def traced(family: str) -> tuple[ExportedProgram, list[Inputs], list[Tensor]]:
    """A small model of the family as a graph, batches of several sizes, and the model's logits."""
    model, space = small_model(family), small_space(family)
    model.set_input_size(space.options["img_size"])  # type: ignore[operator]
    batches: list[Inputs] = [(images(space, batch=size, seed=size),) for size in (1, 3, 5)]
    return trace(model, (images(space, batch=2),)), batches, logits_of(model, batches)


def small_space(family: str) -> Space:
    space = small_of(family)
    return space.with_options(img_size=18) if family == "trionet" else space  # 18: tiles of attention with padding


def holds_paths(content: bytes) -> bool:
    """Whether something of this machine has gone along."""
    return str(Path(__file__).parents[2]).encode() in content


@pytest.mark.parametrize(
    "family",  # one with convolutions, batch norm and attention; the others are like it
    [name if name == "esformer" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_torch_export_agrees_to_the_last_bit_for_any_batch(family: str) -> None:
    """By default not of AutoFormer, which is exported by the command below."""
    program, batches, expected = traced(family)
    content = pt2_bytes(program)
    logits = logits_of(torch.export.load(io.BytesIO(content)).module(), batches)
    assert largest_difference(logits, expected) == 0
    assert not holds_paths(content)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_onnx_agrees_for_any_batch(family: str) -> None:
    """Slow: by default the command below exports an AutoFormer."""
    program, batches, expected = traced(family)
    content = onnx_bytes(program)
    assert largest_difference(run_onnx(content, batches), expected) < 1e-4
    assert not holds_paths(content)


# The command


@needs_onnx
@pytest.mark.slow
def test_the_command_exports_a_run_in_every_format(finished: Path, tmp_path: Path, capsys: Any) -> None:
    import onnxruntime

    capsys.readouterr()
    folder = tmp_path / "out"
    assert main(["export", str(finished), "--to", str(folder)]) == 0
    said = capsys.readouterr().out
    assert listed(tmp_path) == ["out"]
    assert listed(folder) == FILES
    for file in ("model.py", "model.pt2", "model.safetensors"):
        assert f"  {file:18} 0.0e+00" in said
    assert "  model.onnx" in said
    card, winner = (folder / "README.md").read_text(), read_json(finished / "result.json")["winner"]
    for fact in (f"{winner['test_accuracy']:.2%}", f"{winner['params']:,}", "inherited from", "digits", '"epochs": 2'):
        assert fact in card, fact
    for fact in ("autoformer-micro", "0, 1, 2, 3", "resized to 8 pixels", json.dumps(winner["arch"]), *FILES[1:]):
        assert fact in card, fact
    tiny.assert_same(load_model(folder), load_model(finished / "model"))
    facts = facts_in(finished / "model")
    assert facts_in(folder) == facts | {"provenance": facts_in(folder)["provenance"]}
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
    assert session.get_outputs()[0].shape == ["batch", 10]
    metadata = {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}
    assert metadata == {"preprocessing": facts["preprocessing"], "classes": facts["classes"]}
    assert metadata["preprocessing"]["mean"] == facts["mean"]


def test_the_command_exports_a_model_folder(finished: Path, tmp_path: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert main(["export", str(finished / "model"), "--to", str(tmp_path / "b"), "--formats", "", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == {"model.safetensors": 0.0}
    assert facts_in(tmp_path / "b")["provenance"]["seed"] == 0
    assert "The search" in (tmp_path / "b" / "README.md").read_text()


def test_the_command_refuses(finished: Path, tmp_path: Path, capsys: Any) -> None:
    run = str(finished)
    assert "say what to export" in small_run.refused(capsys, ["export", run])
    assert "other things in it" in small_run.refused(capsys, ["export", run, "--to", run])
    assert "unknown format" in small_run.refused(
        capsys, ["export", run, "--to", str(tmp_path / "x"), "--formats", "exe"]
    )
    assert "no model folder" in small_run.refused(capsys, ["export", str(tmp_path / "no"), "--to", str(tmp_path / "x")])
    assert listed(tmp_path) == []


def test_a_model_of_no_run_is_exported_too(tmp_path: Path) -> None:
    save_model(tiny_model(), tmp_path / "plain")
    assert main(["export", str(tmp_path / "plain"), "--to", str(tmp_path / "out"), "--formats", ""]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Nothing is known about it" in card
    assert "How they were normalised in training is not known" in card


# What is written, and what is left behind


def test_facts_go_along(tmp_path: Path) -> None:
    exported = export_model(tiny_model(), tmp_path / "out", FACTS, formats=[])
    assert (exported.folder, exported.differences, exported.notes) == (tmp_path / "out", {"model.safetensors": 0.0}, [])
    assert facts_in(tmp_path / "out") == FACTS
    card = (tmp_path / "out" / "README.md").read_text()
    for fact in ("autoformer-micro", "[0.5]", "[0.25]", "a, b, c"):
        assert fact in card, fact


def test_formats_can_be_left_out_and_old_files_go(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_model(tiny_model(), tmp_path / "out", formats=[])
    assert listed(tmp_path / "out") == ["README.md", "config.json", "model.safetensors"]
    (tmp_path / "out" / "model.onnx").write_bytes(b"of another model")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with patch.object(bundle, "logits_without_nasformer", return_value={}):
        export_model(tiny_model(), tmp_path / "out", formats=["python"])
    assert listed(tmp_path / "out") == ["README.md", "config.json", "model.py", "model.safetensors", "notes.txt"]
    with pytest.raises(UserError, match="unknown format tflite; there are: python, pt2, onnx"):
        export_model(tiny_model(), tmp_path / "other", formats=["tflite"])


def test_without_onnx_the_rest_is_written(tmp_path: Path) -> None:
    with patch("nasformer.export.bundle.has_onnx", return_value=False), pytest.raises(UserError, match="pip install"):
        onnx_bytes(None)  # type: ignore[arg-type]
    no_onnx, no_trace = (patch(f"nasformer.export.bundle.{name}", return_value=None) for name in ("has_onnx", "trace"))
    with no_onnx, no_trace:
        exported = export_model(tiny_model(), tmp_path / "out", formats=["onnx"])
    assert exported.notes == [
        "model.onnx was not written, since onnx or onnxscript is missing: pip install 'nasformer[onnx]'"
    ]
    assert "model.onnx" not in listed(tmp_path / "out")


def test_without_onnxruntime_the_file_is_said_to_be_unchecked(tmp_path: Path) -> None:
    values = {"trace": None, "has_onnx": True, "has_onnxruntime": False, "onnx_bytes": b"a graph"}
    with patch.multiple("nasformer.export.bundle", **{name: lambda *_, v=value: v for name, value in values.items()}):
        exported = export_model(tiny_model(), tmp_path / "out", formats=["onnx"])
    assert exported.differences["model.onnx"] is None
    assert "model.onnx is unchecked" in exported.notes[0]
    assert "| `model.onnx` | not checked |" in (tmp_path / "out" / "README.md").read_text()


def test_a_file_that_differs_is_not_left_behind(tmp_path: Path) -> None:
    def wrong(folder: Path, files: list[str], batches: list[Inputs]) -> dict[str, list[Tensor]]:
        return {"model.py": [logits + 0.001 for logits in logits_of(load_model(folder), batches)]}

    export_model(tiny_model(), tmp_path / "out", formats=[])
    before = small_run.contents(tmp_path)
    replaced = patch.object(bundle, "logits_without_nasformer", wrong)
    with replaced, pytest.raises(UserError, match=r"logits of model\.py differ"):
        export_model(tiny_model(), tmp_path / "out", formats=["python"])
    assert small_run.contents(tmp_path) == before


@pytest.mark.slow
def test_a_file_that_needs_more_than_torch_is_found_out(tmp_path: Path) -> None:
    others = "from importlib import import_module\nfor name in ('timm', 'safetensors', 'PIL'):\n    try:\n"
    others += "        import_module(name)\n    except ImportError:\n        continue\n    raise AssertionError(name)\n"
    (tmp_path / "model.py").write_text(f"{others}import nasformer\n")
    with pytest.raises(UserError, match=r"model.py cannot be used without nasformer .*nasformer") as error:
        logits_without_nasformer(tmp_path, ["model.py"], [(torch.zeros(1, 1, 8, 8),)])
    assert "AssertionError" not in str(error.value)
    assert "\n" not in str(error.value)


def test_differences() -> None:
    a, b = [torch.zeros(2, 3)], [torch.full((2, 3), 1e-3)]
    assert largest_difference(a, b) == pytest.approx(1e-3)
    assert largest_difference(a, [torch.zeros(2, 1)]) == float("inf")
    assert largest_difference([torch.full((2, 3), float("nan"))], a) == float("inf")
    nothing = [torch.zeros(0, 4), torch.zeros(0)]  # a detector that finds no box
    assert largest_difference(nothing, nothing) == 0
    assert largest_difference(nothing, [torch.zeros(1, 4), torch.zeros(1)]) == float("inf")
    assert check("x", a, a) == 0
    with pytest.raises(UserError, match=r"logits of x differ from the model's by 1.0e-03"):
        check("x", a, b)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that has room for the weights, but not for a graph beside them."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a disk needs to be root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_an_error_and_leaves_nothing(full_disk: Path, tmp_path: Path, capsys: Any) -> None:
    """torch's own writer would end the process."""
    save_model(tiny_model(), tmp_path / "model")
    argv = ["export", str(tmp_path / "model"), "--to", str(full_disk / "out"), "--formats", "pt2"]
    assert main(argv) == 2
    *told, last = capsys.readouterr().err.splitlines()
    assert told == ["export: tracing the graph"]
    assert last.startswith("nasformer: the disk is full")
    assert listed(full_disk) == []


def test_text_of_others_cannot_break_the_card(tmp_path: Path) -> None:
    nasty = "<b>x</b>|`y`\n## Head *z* caf\udce9"
    facts = {"mean": [0.5], "std": [0.25], "classes": [nasty] * 10, "space": nasty, "provenance": {"data": nasty}}
    export_model(tiny_model(), tmp_path / "out", facts, formats=[])
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "<b>" not in card
    assert "\n## Head" not in card
    assert card.count(r"&lt;b&gt;x&lt;/b&gt;\|\`y\` \#\# Head \*z\* caf\\udce9") == 12


def test_nobodys_files_are_overwritten(tmp_path: Path) -> None:
    for name, content in (("README.md", "mine"), ("config.json", '{"space": "a run"}')):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(UserError, match="has other things in it than a model"):
            export_model(tiny_model(), folder, formats=[])
        assert (folder / name).read_text() == content
    with pytest.raises(UserError, match="is a file; name a folder"):
        export_model(tiny_model(), tmp_path / "README" / "README.md", formats=[])


@pytest.mark.parametrize("task", ["segment", "detect", "panoptic", "vqa"])
def test_only_classifiers_have_weights_for_timm(task: str, tmp_path: Path) -> None:
    plain = get_space("vit-micro", img_size=32, patch_size=8)
    assert write_for_timm(fresh_model(plain, plain.root.largest(), 0), tmp_path)
    options = TaskOptions(task).with_task_options(decoder_dim=8)
    space = get_task(task).space(plain, options.of_task)
    assert write_for_timm(fresh_model(space, space.root.largest(), 0), tmp_path) == {}


def test_a_detector_that_finds_nothing_is_exported(tmp_path: Path) -> None:
    backbone = get_space("s3-micro", img_size=32, patch_size=2, num_classes=80)  # 80 classes: none is probable
    space = get_task("detect").space(backbone, TaskOptions("detect").with_task_options(decoder_dim=8).of_task)
    model = fresh_model(space, space.root.smallest(), 0)
    exported = export_model(model, tmp_path / "export", {**FACTS, "mean": [0.5] * 3, "std": [0.25] * 3}, quiet=True)
    assert exported.differences["model.py"] == 0
    assert any("finds nothing" in note for note in exported.notes)
