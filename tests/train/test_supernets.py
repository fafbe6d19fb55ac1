"""The Python interface, as the README shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from nasformer.data.loaders import Batches
from nasformer.runs.search import search_supernet

OPTIONS = {"population": 4, "generations": 2}


def test_the_interface_in_fifteen_lines(tmp_path: Path) -> None:
    import nasformer
    from nasformer import Budget, Recipe, Supernet

    data = nasformer.load_data("digits", holdout=0.2)
    space = nasformer.get_space("autoformer-micro", img_size=8, patch_size=4, in_chans=1, num_classes=10)
    supernet = Supernet(space)
    nasformer.train_supernet(supernet, data, Recipe(epochs=1), quiet=True)
    budget = Budget(max_params=100_000)
    result = nasformer.search_supernet(supernet, data, budget=budget, options=OPTIONS, quiet=True)
    model = supernet.extract(result.best.arch)
    nasformer.save_model(model, tmp_path)

    assert len(result.candidates) == 8
    assert result.best.scores["accuracy"] == max(one.scores["accuracy"] for one in result.candidates)
    assert sum(p.numel() for p in model.parameters()) == result.best.scores["params"] <= 100_000
    loaded, x = nasformer.load_model(tmp_path), torch.randn(4, 1, 8, 8)
    assert torch.equal(loaded(x), supernet.eval()(x, result.best.arch))


def test_a_search_never_touches_the_test_images(monkeypatch: Any) -> None:
    seen = []
    real = Batches.evaluation

    def recorded(self: Batches, split: Any, batch_size: int) -> Any:
        seen.append(split)
        assert split != "test"
        return real(self, split, batch_size)

    monkeypatch.setattr(Batches, "evaluation", recorded)
    search_supernet(tiny.supernet(), tiny.DATA, options=OPTIONS, quiet=True)
    assert set(seen) == {"holdout"}


def test_searches_with_one_seed_agree_and_with_two_differ(tmp_path: Path) -> None:
    model = tiny.supernet()

    def journal(name: str, seed: int) -> bytes:
        path = tmp_path / name
        search_supernet(model, tiny.DATA, options=OPTIONS, seed=seed, journal=path, quiet=True)
        return path.read_bytes()

    assert journal("a", 0) == journal("b", 0)
    assert journal("c", 1).splitlines()[1:] != journal("a", 0).splitlines()[1:]


@pytest.mark.parametrize(
    ("strategy", "options", "count"), [("random", {"evaluations": 5}, 5), ("evolution", OPTIONS, 8)]
)
def test_progress_counts_every_candidate(capsys: Any, strategy: str, options: Any, count: int) -> None:
    search_supernet(tiny.supernet(), tiny.DATA, strategy=strategy, options=options)
    assert capsys.readouterr().err.startswith(f"search: {count}/{count}, ")
