"""A search must agree with the training of its supernet; what cannot work is refused before work begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from nasformer.cli.main import main
from nasformer.errors import UserError
from nasformer.proxies.scoring import Scorer
from nasformer.runs.search import search_supernet, search_training_free
from small_run import contents, refused, words


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holdout": 0.1}, "was trained with --holdout 0.2 --seed 0; give the same, or the search would see images"),
        ({"seed": 1}, "was trained with --holdout 0.2 --seed 0; give the same"),
        ({"patch_size": 2}, "the supernet was trained with patch_size 4, not 2"),
        ({"img_size": 16}, "the supernet was trained with img_size 8, not 16"),
        ({"model": {"global_pool": "token"}}, "the supernet was trained with global_pool avg, not token"),
        ({"space": "autoformer-tiny"}, "holds a supernet of autoformer-micro, not of autoformer-tiny"),
        ({"max_params": "100K"}, "(budget.max_params was 120000, now 100000); use another --out folder"),
    ],
)
def test_a_search_unlike_the_training_is_refused(run: Path, capsys: Any, changes: Any, message: str) -> None:
    before = contents(run)
    assert message in refused(capsys, words("search", run, **changes))
    assert contents(run) == before  # config.json among them: a refused command leaves no trace


@pytest.mark.parametrize(("shape", "message"), [((8, 8), "num_classes 10, not 5"), ((8, 8, 3), "in_chans 1, not 3")])
def test_data_that_the_supernet_does_not_know_is_refused(
    run: Path, tmp_path: Path, capsys: Any, shape: tuple[int, ...], message: str
) -> None:
    path, images = tmp_path / "data.npz", np.zeros((50, *shape), np.uint8)
    labels = np.arange(50) % 5
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    assert message in refused(capsys, words("search", run, data=str(path)))
    told = message.partition(",")[0]
    assert f"is for {told}, but {path} has" in refused(capsys, ["evaluate", str(run / "model"), "--data", str(path)])


def test_training_on_other_images_is_refused(run: Path, tmp_path: Path, capsys: Any) -> None:
    def last_line(argv: list[str]) -> str:  # how many images there are to train on is said before
        assert main(argv) == 2
        return capsys.readouterr().err.splitlines()[-1]

    few = tmp_path / "few"
    assert "trained with train_images = None, not 300; go on" in last_line(words("train", run, train_images=300))
    assert main(words("train", few, train_images=300)) == 0
    assert "trained with train_images = 300, not None; go on" in last_line(words("train", few))
    assert main(words("search", few, train_images=300)) == 0
    message = last_line(words("search", few, train_images=200))
    assert "belongs to a search with other settings (train_images was 300, now 200)" in message


def test_a_journal_of_another_supernet_is_refused(run: Path, tmp_path: Path, capsys: Any) -> None:
    other = tmp_path / "other"
    assert main(words("train", other, train={"epochs": 1})) == 0
    argv = [*words("search", run), "--supernet", str(other / "supernet")]
    assert "belongs to a search with other settings (supernet was " in refused(capsys, argv)


def test_misspelt_options_of_a_strategy_are_refused() -> None:
    scorer = Scorer(tiny.SPACE, "params")
    with pytest.raises(UserError, match="RandomSearch has no option 'evalations'; did you mean evaluations"):
        search_training_free(scorer, options={"evalations": 3})
    with pytest.raises(UserError, match="Evolution has no option 'populaton'; did you mean population"):
        search_supernet(tiny.supernet(), tiny.DATA, options={"populaton": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holdout": 0.0}, "no images are held out"),
        ({"max_params": "1K"}, "no architecture fits params <= 1K"),
        ({"search": {"strategy": "magic"}}, "unknown strategy 'magic'"),
        ({"search": {"population": 0}}, "population is 0, expected at least 1"),
        ({"search": {"objectives": ["beauty"]}}, "objective 'beauty' is not among the scores"),
    ],
)
def test_a_search_that_must_fail_does_so_before_the_training(
    tmp_path: Path, capsys: Any, changes: dict[str, Any], message: str
) -> None:
    run = tmp_path / "run"
    assert message in refused(capsys, words("run", run, **changes))
    assert not (run / "train").exists()
