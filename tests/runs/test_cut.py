"""Cuts of a pretrained net without training: photos without labels, agreement, compensation, short distillation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.data.sources import load_data
from nasformer.models.storage import load_model
from nasformer.results.contents import read_run
from nasformer.results.result import RunResult
from small_run import contents, pictures, refused

SEARCH = {"population": 6, "parents": 3, "generations": 2}


def words(source: Path, out: Path, **changes: Any) -> list[str]:
    settings = {"from": str(source), "data": "digits", "max_macs": "60%", "search": SEARCH, "export": False}
    path = out.parent / "cut.yaml"
    path.write_text(json.dumps({**settings, "no_training": True, **changes}))
    return ["run", "--config", str(path), "--out", str(out)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as photos in a folder, without classes."""
    folder, images = tmp_path_factory.mktemp("photos"), load_data("digits").train.images[:150]
    for number, image in enumerate(images):
        Image.fromarray(np.asarray(image[0])).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def cut(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cut") / "run"
    with pictures(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("nasformer.latency.measure.VISIT_SECONDS", 0.001)  # exact times do not matter here
        assert main(words(source, out, front=3)) == 0
    return out


def test_a_cut_keeps_the_classes_and_the_budget_and_says_how_far_it_agrees(cut: Path) -> None:
    result = RunResult.load(cut / "result.json")
    full = next(model for model in result.references if model.name == "full net")
    assert result.winner["macs"] <= 0.6 * full["macs"]
    assert full["test_agreement"] == pytest.approx(1.0, abs=1e-5)
    assert 0.3 < result.winner["test_agreement"] < 1
    assert result.winner["test_accuracy"] > 0.5
    model = load_model(cut / "model")
    assert (model.arch, model.num_classes) == (result.arch, 10)
    assert not (cut / "train").exists()


@pytest.mark.slow
def test_a_finished_cut_is_left_as_it_is(cut: Path, source: Path) -> None:
    before = contents(cut)
    with pictures():  # as the run had them
        assert main(words(source, cut, front=3)) == 0
    assert contents(cut) == before


@pytest.mark.slow
def test_latencies_of_a_wrong_shape_are_refused(cut: Path, source: Path, tmp_path: Path, capsys: Any) -> None:
    run = shutil.copytree(cut, tmp_path / "run")
    (run / "search" / "latency.json").write_text('{"ms": 7}')
    assert main(words(source, run, front=3)) == 2
    assert "latency.json" in capsys.readouterr().err.splitlines()[-1]


def test_a_front_of_sizes_is_shipped_and_timed(cut: Path) -> None:
    result = RunResult.load(cut / "result.json")
    assert result.sizes
    assert 2 <= len(result.sizes) <= 3
    assert result.timing == "eager on cpu, batch 1, threads 1"
    for size in result.sizes:
        assert load_model(cut / size.name / "model").arch.to_dict() == size.arch
        assert size["measured_latency_ms"] > 0
    macs = [size["macs"] for size in result.sizes]
    assert macs == sorted(set(macs))
    uniform = next(model for model in result.references if model.name == "uniform")
    assert uniform["macs"] <= 0.6 * next(m for m in result.references if m.name == "full net")["macs"]
    first, *others = read_run(cut).candidates
    assert (first.origin, first.arch.to_dict()) == ("seed", uniform.arch)
    assert all(candidate.origin != "seed" for candidate in others)
    assert result.winner["holdout_agreement"] >= first.scores["agreement"] - 1e-6
    page = (cut / "report.html").read_text()
    for words in ("What you give up, and what you gain", "Accuracy against latency", "What was cut where"):
        assert words in page


@pytest.mark.slow
def test_photos_without_labels_will_do_and_a_short_distillation_too(
    source: Path,
    photos: Path,
    tmp_path: Path,
) -> None:
    short = {"iterations": 20, "batch_size": 32, "augment": {"crop": "none", "hflip": 0.0}}
    out = tmp_path / "run"
    assert main(words(source, out, data=str(photos), finish="finetune", train=short, holdout=0.3, img_size=8)) == 0
    result = RunResult.load(out / "result.json")
    assert "test_accuracy" not in result.winner.scores
    assert result.images is None
    assert result.finish is not None
    assert set(result.finish.holdout_accuracy) == {"inherited", "distilled"}
    assert result.shipped["holdout_agreement"] == max(result.finish.holdout_accuracy.values())
    assert load_model(out / "model").num_classes == 10
    assert (out / "report.html").exists()


def test_photos_without_labels_are_refused_where_a_net_is_trained(
    source: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = refused(capsys, words(source, tmp_path / "run", data=str(photos), no_training=False))
    assert "no class folders" in told
    assert "--no-training" in told


def test_compensation_comes_nearer_to_the_full_net_than_a_bare_cut(source: Path) -> None:
    from nasformer.supernet.importance import Compensation, sort_by_importance
    from nasformer.supernet.storage import find_pretrained, supernet_from

    found, data = find_pretrained(str(source)), load_data("digits")
    images = (data.train.images[:256].float() / 255 - 0.5) / 0.25
    before = found.model(images)
    sort_by_importance(found.model, [(images, None)], "surgeon")
    torch.testing.assert_close(found.model(images), before, atol=1e-4, rtol=1e-4)
    supernet = supernet_from(found.model, found.space).eval()
    compensation = Compensation(supernet, [images])
    arch = found.space.arch({"embed_dim": 32, "blocks": [{"num_heads": 1, "hidden_dim": 64}] * 2})
    bare, fitted = (
        (model(images).softmax(-1) - before.softmax(-1)).abs().mean()
        for model in (supernet.extract(arch), compensation.extract(arch))
    )
    assert fitted < 0.8 * bare
    whole = compensation.extract(found.space.root.largest())
    torch.testing.assert_close(whole(images), before, atol=1e-4, rtol=1e-4)
