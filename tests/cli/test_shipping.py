"""A run ends with an exported model; it is made once, and a run does not fail with it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tiny
from nasformer.cli.main import main
from nasformer.errors import UserError
from nasformer.models.storage import facts_in, load_model, save_model
from nasformer.results.folder import RunFolder
from nasformer.runs import finish as shipping
from nasformer.utils.files import read_json
from small_run import contents, words

QUICK = partial(shipping.export_folder, formats=[])


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("done before")


def test_a_run_is_exported_once(run: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(shipping, "export_folder", QUICK)
    (run / ".export.1.tmp").mkdir()
    assert main(words("run", run, export=True)) == 0
    assert f"export: {run / 'export'}" in capsys.readouterr().out
    assert {path.name for path in (run / "export").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert not (run / ".export.1.tmp").exists()
    tiny.assert_same(load_model(run / "export"), load_model(run / "model"))
    assert read_json(run / "export" / "config.json")["provenance"]["data"] == "digits"
    before = contents(run / "export")
    monkeypatch.setattr(shipping, "export_folder", forbidden)
    assert main(words("run", run, export=True)) == 0
    assert contents(run / "export") == before


def test_another_model_is_exported_anew(run: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(shipping, "export_folder", QUICK)
    shipping.ship(RunFolder(run))
    assert shipping.is_exported(run / "model", run / "export")
    model, facts = load_model(run / "model"), facts_in(run / "model")
    save_model(model, run / "model", **facts | {"test_accuracy": 0.5})
    assert not shipping.is_exported(run / "model", run / "export")
    next(model.parameters()).data.add_(1)
    save_model(model, run / "model", **facts)
    assert not shipping.is_exported(run / "model", run / "export")
    shipping.ship(RunFolder(run))
    tiny.assert_same(load_model(run / "export"), model)


@pytest.mark.parametrize("error", [UserError("the logits differ"), RuntimeError("no graph\nof it")])
def test_a_failing_export_is_a_warning(run: Path, capsys: Any, monkeypatch: Any, error: Exception) -> None:
    def failing(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(shipping, "export_folder", failing)
    shipping.ship(RunFolder(run))
    reason = str(error).splitlines()[0]
    assert f"warning: the model was not exported ({reason}); it is in {run / 'model'}." in capsys.readouterr().err
    assert not (run / "export").exists()


def test_retraining_and_finetuning_export_too(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    exported: list[Path] = []
    monkeypatch.setattr("nasformer.runs.single.ship", lambda folder: exported.append(folder.path))
    config = tmp_path / "short.yaml"
    config.write_text(json.dumps({"train": {"iterations": 1, "batch_size": 64, "augment": {"crop": "none"}}}))
    for command in ("retrain", "finetune"):
        argv = [command, str(run), "--config", str(config), "--holdout", "0"]
        assert main([*argv, "--out", str(tmp_path / command)]) == 0
        assert main([*argv, "--out", str(tmp_path / f"{command}-bare"), "--export", "false"]) == 0
    assert exported == [tmp_path / "retrain", tmp_path / "finetune"]
