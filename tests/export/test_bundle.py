from __future__ import annotations

import errno
import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import runs
import tiny
from export.small import FAMILIES, small_model, small_of
from families.small import images
from nasformer.cli.main import main
from nasformer.errors import UserError
from nasformer.export import bundle
from nasformer.export.bundle import check, export_model, largest_difference, logits_without_nasformer, random_batches
from nasformer.export.graphs import has_onnx, has_onnxruntime, onnx_bytes, pt2_bytes, run_onnx, trace
from nasformer.families.base import Backbone
from nasformer.families.storage import facts_in, load_model, save_model

needs_onnx = pytest.mark.skipif(not (has_onnx() and has_onnxruntime()), reason="needs the extra onnx")
FACTS = {"mean": [0.5], "std": [0.25], "classes": list("abcdefghij"), "space": "autoformer-micro"}


def tiny_model() -> Backbone:
    return tiny.supernet().extract(tiny.SMALLEST).eval()


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@needs_onnx
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_agree_for_any_batch(family: str) -> None:
    """torch.export to the last bit, ONNX Runtime within 1e-4; for every family there is."""
    space = small_of(family)
    if family == "trionet":  # so that local attention goes by tiles, with some to fill up
        space = space.with_options(img_size=18)
    model = small_model(family)
    model.set_input_size(space.options["img_size"])  # type: ignore[operator]
    program = trace(model, images(space, batch=2))
    pt2, onnx = pt2_bytes(program), onnx_bytes(program)
    loaded = torch.export.load(io.BytesIO(pt2)).module()
    batches = [images(space, batch=size, seed=size) for size in (1, 3, 5)]
    with torch.no_grad():
        expected = [model(x) for x in batches]
        assert all(torch.equal(loaded(x), logits) for x, logits in zip(batches, expected, strict=True))
    assert largest_difference(run_onnx(onnx, batches), expected) < 1e-4
    for content in (pt2, onnx):  # nothing of this machine goes along
        assert str(Path(__file__).parents[2]).encode() not in content


@needs_onnx
def test_an_export_holds_everything_checked(tmp_path: Path) -> None:
    model = tiny_model()
    done = export_model(model, tmp_path / "out", FACTS)
    assert listed(tmp_path) == ["out"]
    files = ["README.md", "config.json", "model.onnx", "model.pt2", "model.py", "model.safetensors"]
    assert listed(tmp_path / "out") == files
    assert set(done.differences) == {name for name in files if name.startswith("model.")}
    assert all(difference is not None and difference <= 1e-4 for difference in done.differences.values())
    assert done.differences["model.py"] == 0
    assert done.notes == []
    tiny.assert_same(load_model(tmp_path / "out"), model)
    assert facts_in(tmp_path / "out") == FACTS
    card = (tmp_path / "out" / "README.md").read_text()
    for said in ("autoformer-micro", "[0.5]", "[0.25]", "a, b, c", *files[1:], json.dumps(model.arch.to_dict())):
        assert said in card, said
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == FACTS["classes"]
    assert json.loads(metadata["preprocessing"])["mean"] == FACTS["mean"]
    assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
    assert session.get_outputs()[0].shape == ["batch", 10]


def test_formats_can_be_left_out_and_old_files_go(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_model(tiny_model(), tmp_path / "out", formats=[])
    assert listed(tmp_path / "out") == ["README.md", "config.json", "model.safetensors"]
    (tmp_path / "out" / "model.onnx").write_bytes(b"of another model")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    export_model(tiny_model(), tmp_path / "out", formats=["python"])
    assert listed(tmp_path / "out") == ["README.md", "config.json", "model.py", "model.safetensors", "notes.txt"]
    with pytest.raises(UserError, match="unknown format tflite; there are: python, pt2, onnx"):
        export_model(tiny_model(), tmp_path / "other", formats=["tflite"])


def test_without_onnx_the_rest_is_written(tmp_path: Path) -> None:
    with patch("nasformer.export.graphs.has_onnx", return_value=False), pytest.raises(UserError, match="pip install"):
        onnx_bytes(None)  # type: ignore[arg-type]
    with patch("nasformer.export.graphs.has_onnx", return_value=False):
        done = export_model(tiny_model(), tmp_path / "out", formats=["onnx"])
    assert done.notes == [
        "model.onnx was not written, since onnx or onnxscript is missing: pip install 'nasformer[onnx]'"
    ]
    assert "model.onnx" not in listed(tmp_path / "out")


@needs_onnx
def test_without_onnxruntime_the_file_is_said_to_be_unchecked(tmp_path: Path) -> None:
    with patch("nasformer.export.graphs.has_onnxruntime", return_value=False):
        done = export_model(tiny_model(), tmp_path / "out", formats=["onnx"])
    assert done.differences["model.onnx"] is None
    assert "model.onnx is unchecked" in done.notes[0]
    assert "| `model.onnx` | not checked |" in (tmp_path / "out" / "README.md").read_text()


def test_a_file_that_differs_is_not_left_behind(tmp_path: Path) -> None:
    source = bundle.standalone_source

    def wrong(*about: Any) -> str:
        return source(*about).replace("return self.head(", "return 1.001 * self.head(")

    export_model(tiny_model(), tmp_path / "out", formats=[])
    before = runs.contents(tmp_path)
    replaced = patch("nasformer.export.bundle.standalone_source", wrong)
    with replaced, pytest.raises(UserError, match=r"logits of model\.py differ"):
        export_model(tiny_model(), tmp_path / "out", formats=["python"])
    assert runs.contents(tmp_path) == before


@pytest.mark.parametrize("package", ["nasformer", "timm", "safetensors"])
def test_a_file_that_needs_more_than_torch_is_found_out(package: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(f"import {package}\n")
    with pytest.raises(UserError, match=f"model.py cannot be used without nasformer .*{package}") as error:
        logits_without_nasformer(tmp_path, ["model.py"], random_batches((1, 8, 8)))
    assert "\n" not in str(error.value)


def test_differences() -> None:
    a, b = [torch.zeros(2, 3)], [torch.full((2, 3), 1e-3)]
    assert largest_difference(a, b) == pytest.approx(1e-3)
    assert largest_difference(a, [torch.zeros(2, 1)]) == float("inf")
    assert largest_difference([torch.full((2, 3), float("nan"))], a) == float("inf")
    assert check("x", a, a) == 0
    with pytest.raises(UserError, match=r"logits of x differ from the model's by 1.0e-03"):
        check("x", a, b)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that has room for the weights, but not for a graph beside them."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a disk needs to be root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_an_error_and_leaves_nothing(full_disk: Path, tmp_path: Path, capsys: Any) -> None:
    """torch's own writer would end the process."""
    with pytest.raises(OSError, match="No space left") as error:
        export_model(tiny_model(), full_disk / "out", formats=["pt2"])
    assert error.value.errno == errno.ENOSPC
    assert listed(full_disk) == []
    save_model(tiny_model(), tmp_path / "model")
    argv = ["export", str(tmp_path / "model"), "--to", str(full_disk / "out"), "--formats", "pt2"]
    assert "the disk is full" in runs.refused(capsys, argv)


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


# The command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(runs.words("run", folder)) == 0
    return folder


def test_the_command_exports_a_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["export", str(run), "--to", str(tmp_path / "a"), "--formats", "python, pt2"]) == 0
    said = capsys.readouterr().out
    assert "model.py           0.0e+00" in said
    assert "model.pt2          0.0e+00" in said
    card = (tmp_path / "a" / "README.md").read_text()
    winner = json.loads((run / "result.json").read_text())["winner"]
    for fact in (f"{winner['test_accuracy']:.2%}", f"{winner['params']:,}", "inherited from", "digits", '"epochs": 2'):
        assert fact in card, fact
    tiny.assert_same(load_model(tmp_path / "a"), load_model(run / "model"))
    assert main(["export", str(run / "model"), "--to", str(tmp_path / "b"), "--formats", "", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == {"model.safetensors": 0.0}
    assert facts_in(tmp_path / "b")["provenance"]["seed"] == 0


def test_the_command_refuses(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "say what to export" in runs.refused(capsys, ["export", str(run)])
    assert "other things in it" in runs.refused(capsys, ["export", str(run), "--to", str(run)])
    assert "unknown format" in runs.refused(
        capsys, ["export", str(run), "--to", str(tmp_path / "x"), "--formats", "exe"]
    )
    assert "no model folder" in runs.refused(capsys, ["export", str(tmp_path / "no"), "--to", str(tmp_path / "x")])
    assert listed(tmp_path) == []


def test_a_model_of_no_run_is_exported_too(tmp_path: Path) -> None:
    save_model(tiny_model(), tmp_path / "plain")
    assert main(["export", str(tmp_path / "plain"), "--to", str(tmp_path / "out"), "--formats", ""]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Nothing is known about it" in card
    assert "How they were normalised in training is not known" in card
