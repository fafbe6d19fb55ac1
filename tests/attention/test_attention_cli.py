"""`nasformer attention`: a picture and a table of a trained model, and one line for what cannot be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from attention.nets import block_with, net, pictures
from nasformer.cli.main import main
from nasformer.data.images import normalise
from nasformer.models.storage import load_model, save_model
from nasformer.report.attention import attention_figure, attention_maps
from nasformer.utils.files import read_json
from small_run import refused


@pytest.fixture
def digit(tmp_path: Path) -> Path:
    """Test image 3 of the digits as a file."""
    path = tmp_path / "digit.png"
    Image.fromarray(tiny.DATA.test.images[3, 0].numpy()).save(path)
    return path


def shown(capsys: Any, *words: str | Path) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["attention", *map(str, words), "--device", "cpu", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_file_is_prepared_as_evaluation_does(finished: Path, digit: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["--block", "2", "--query", "0,1", "--out", tmp_path / "new" / "a.png"]
    found = shown(capsys, finished, digit, *words)
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    model, config = load_model(finished / "model"), read_json(finished / "model" / "config.json")
    x = normalise(tiny.DATA.test.images[3:4], config["mean"], config["std"])
    maps = attention_maps(model, x, "2")
    assert (found["block"], found["grid"], found["query"]) == ("2", [2, 2], [0, 1])
    assert found["similarity"] == maps.similarity().tolist()
    assert found["mean_similarity"] == maps.mean_similarity()
    assert [head["head"] for head in found["heads"]] == [str(head) for head in maps.heads]
    for name, values in (("entropy_bits", maps.entropy()), ("distance", maps.distance())):
        assert [head[name] for head in found["heads"]] == values.tolist()
    same = shown(capsys, finished / "model", "--data", "digits", "--index", "3", "--holdout", "0.2", *words)
    assert same == found


def test_the_table_and_the_centre(finished: Path, digit: Path, tmp_path: Path, capsys: Any) -> None:
    assert shown(capsys, finished, digit, "--block", "1", "--out", tmp_path / "a.svg")["query"] == [1, 1]
    assert "<svg" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    capsys.readouterr()
    words = ["--block", "1", "--query", "cls", "--out", str(tmp_path / "a.png")]
    assert main(["attention", str(finished), str(digit), *words]) == 0
    said = capsys.readouterr().out
    for part in ("heads of block 1, on a map of 2 x 2", "entropy (bits)", "distance", "on the class token"):
        assert part in said
    assert "similarity of heads: " in said
    assert f"picture: {tmp_path / 'a.png'}" in said


def test_what_cannot_be_shown(finished: Path, digit: Path, tmp_path: Path, capsys: Any) -> None:
    def told(*words: str | Path) -> str:
        return refused(capsys, ["attention", *map(str, words), "--device", "cpu", "--out", str(tmp_path / "a.png")])

    (tmp_path / "text.png").write_text("no image")
    both = (finished, digit)
    assert "say which model and image: nasformer attention MODEL IMAGE" in told()
    assert "say which model and image" in told(finished, "--block", "1")
    assert "say which model and image" in told(*both, "--data", "digits", "--block", "1")
    assert "say which block: --block BLOCK; with attention there are: 1, 2, 3" in told(*both)
    assert "block '3.10' does not exist; there are: 1, 2" in told(*both, "--block", "3.10")  # and is no number 3.1
    assert "--query is '1'; give row,column" in told(*both, "--block", "1", "--query", "1")
    assert "the query 2,0 is outside the map of block 1" in told(*both, "--block", "1", "--query", "2,0")
    assert "there is no image" in told(finished, tmp_path / "none.png", "--block", "1")
    assert "cannot be read as an image" in told(finished, tmp_path / "text.png", "--block", "1")
    assert "no model folder at" in told(tmp_path / "none", digit, "--block", "1")
    assert "there are 360 test images, so give 0 to 359" in told(
        finished, "--data", "digits", "--index", "360", "--block", "1"
    )
    assert "ends in .png or .svg" in refused(capsys, ["attention", *map(str, both), "--block", "1", "--out", "a.gif"])
    assert not (tmp_path / "a.png").exists()


def test_a_model_that_does_not_say_its_normalisation(finished: Path, digit: Path, tmp_path: Path, capsys: Any) -> None:
    save_model(load_model(finished / "model"), tmp_path / "bare")
    words = ["--block", "1", "--out", str(tmp_path / "a.png")]
    assert "does not say how images are normalised" in refused(
        capsys, ["attention", str(tmp_path / "bare"), str(digit), *words]
    )
    assert shown(capsys, tmp_path / "bare", "--data", "digits", *words)["block"] == "1"


@pytest.mark.parametrize("family", ["autoformer", "trionet", "s3"])  # with a class token, with two axes, with neither
def test_the_figure_shows_every_head_and_the_query(family: str) -> None:
    model, x = net(family), pictures(family)
    kind = {"trionet": "width"}.get(family, "attn")
    maps = attention_maps(model, x, block_with(model, kind))
    query: Any = "cls" if maps.class_token else (0, maps.grid[1] - 1)
    figure = attention_figure(maps, torch.rand(x.shape[1:]), query)
    panels, matrix = figure.axes[: len(maps.heads) + 1], figure.axes[-1]
    assert [axes.get_title().split(" ·")[0] for axes in panels] == ["image", *map(str, maps.heads)]
    weights = maps.of(query)[0].numpy()
    for axes, expected in zip(panels[1:], weights, strict=True):
        opacity = axes.images[1].get_array()[..., 3]
        np.testing.assert_allclose(opacity / opacity.max(), expected / expected.max(), atol=1e-6)
    for axes in panels:
        marks = [tuple(line.get_xydata()[0]) for line in axes.lines]
        assert marks == ([] if query == "cls" else [(query[1], query[0])])
    np.testing.assert_allclose(matrix.images[0].get_array(), maps.similarity().numpy())
    assert max(figure.get_size_inches()) < 16


def test_help_does_not_wait_for_torch() -> None:
    import subprocess
    import sys

    code = "import sys; from nasformer.cli.main import main; main(['attention', '--help'])"
    code += "; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "nasformer attention [MODEL] [IMAGE] [options]" in done.stdout
