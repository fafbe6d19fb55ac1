"""Topology and size by turns from the command line, on a space with roles of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.models import registry
from nasformer.models.registry import get_space
from nasformer.proxies.scoring import Scorer
from nasformer.runs.search import search_training_free
from nasformer.search.cyclic import Cyclic
from nasformer.search.evolution import Evolution
from nasformer.search.journal import read_journal
from nasformer.search.options import SearchOptions
from nasformer.search.strategy import complete_options
from nasformer.space.budget import Budget
from nasformer.space.mutation import genes, same_role
from nasformer.space.nodes import Choice, Repeat, Struct
from nasformer.utils.files import read_json
from small_run import refused

BLOCK = Struct(num_heads=Choice(2, 3, 4, role="topology"), mlp_ratio=Choice(2.0, 3.0, 4.0))
ROOT = Struct(embed_dim=Choice(32, 48, 64), blocks=Repeat(BLOCK, depth=Choice(3, 4, 5, 6)))
SPACE = replace(get_space("autoformer-micro"), name="micro-roles", root=ROOT)
SMALL = ["--img-size", "16", "--patch-size", "8", "--num-classes", "10", "--device", "cpu", "--probe-size", "4"]
CYCLIC = ["--proxy", "zen,logsynflow", "--search.strategy", "cyclic", "--search.population", "5"]
CYCLIC += ["--search.steps", "2", "--search.cycles", "2"]
LIMITS = ["--max-params", "150K", "--max-macs", "2M"]


@pytest.fixture(autouse=True, scope="module")
def with_roles() -> Iterator[None]:
    registry.list_spaces()  # or the families would register themselves into the copy
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._spaces, SPACE.name, SPACE)
        yield


@pytest.fixture(scope="module")
def searched(with_roles: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a cyclic search; tests read it only."""
    run = tmp_path_factory.mktemp("cyclic") / "run"
    assert main(argv(run)) == 0
    return run


def argv(out: Path, *more: str) -> list[str]:
    return ["search", "--space", SPACE.name, *SMALL, *CYCLIC, *LIMITS, "--out", str(out), *more]


def test_a_search_by_two_proxies_in_their_order(searched: Path) -> None:
    run = searched
    settings, records = read_journal(run / "search" / "journal.jsonl")
    assert settings["objectives"] == ["zen", "logsynflow"]
    assert "order" not in settings
    assert settings["options"] == {
        **complete_options(Cyclic, {}),
        **{"population": 5, "steps": 2, "cycles": 2, "seeds": []},
    }
    assert [record["origin"] for record in records][:2] == ["start", "topology"]
    assert {record["origin"] for record in records} == {"start", "topology", "size"}
    assert all(record["params"] <= 150_000 and record["macs"] <= 2_000_000 for record in records)
    winner = read_json(run / "result.json")["winner"]
    assert any(record["arch"] == winner["arch"] for record in records)
    assert (run / "report.html").exists()


def test_cut_short_it_ends_the_same(searched: Path, tmp_path: Path) -> None:
    shutil.copytree(searched, tmp_path / "run")
    journal = tmp_path / "run" / "search" / "journal.jsonl"
    whole = journal.read_bytes()
    result = read_json(tmp_path / "run" / "result.json")
    journal.write_bytes(b"".join(whole.splitlines(keepends=True)[:9]))
    (tmp_path / "run" / "result.json").unlink()
    assert main(argv(tmp_path / "run")) == 0
    assert journal.read_bytes() == whole
    assert read_json(tmp_path / "run" / "result.json") == result


def test_the_size_phase_leaves_the_topology_alone() -> None:
    scorer = Scorer(SPACE.with_options(img_size=16, patch_size=8), "naswot,logsynflow", batch_size=4)
    result = search_training_free(
        scorer,
        strategy="cyclic",
        options={"population": 5, "steps": 2, "cycles": 1},
        budget=Budget(max_params=150_000),
        quiet=True,
    )
    size = [one for one in result.candidates if one.origin == "size"]
    assert size
    assert all(same_role(ROOT, one.arch, result.best.arch, "topology") for one in size)
    assert genes(ROOT, result.best.arch, "topology")
    assert result.best.scores["logsynflow"] >= max(one.scores["logsynflow"] for one in size)


def test_each_strategy_has_its_own_population_by_default() -> None:
    assert complete_options(Cyclic, SearchOptions("cyclic").for_strategy())["population"] == 25
    assert complete_options(Evolution, SearchOptions("evolution").for_strategy())["population"] == 50
    assert SearchOptions("cyclic", options={"population": 7}).for_strategy() == {"population": 7}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--space", "autoformer-micro"], "has no topology to choose"),
        (["--proxy", "zen"], "needs two objectives"),
        (["--proxy", "zen,logsynflow,dss"], "needs two objectives"),
        (["--search.cycles", "0"], "cycles is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(change: list[str], said: str, tmp_path: Path, capsys: Any) -> None:
    assert said in refused(capsys, argv(tmp_path / "run", *change))


def test_a_search_without_an_upper_limit_is_refused(capsys: Any) -> None:
    argv = ["search", "--space", SPACE.name, *SMALL, *CYCLIC, "--min-params", "40K"]
    assert "give --max-params or --max-macs" in refused(capsys, argv)
