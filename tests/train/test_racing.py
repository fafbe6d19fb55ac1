"""Racing: candidates judged on growing parts of the held-out images."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import small_run
import tiny
from nasformer.cli.main import main
from nasformer.data.loaders import Batches
from nasformer.results.folder import RunFolder
from nasformer.runs.search import search_supernet
from nasformer.search.problem import Candidate
from nasformer.search.run import search
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Struct
from nasformer.train.evaluate import SubnetEvaluator
from nasformer.train.racing import CONFIDENCE, FIRST, REFERENCES, Confidence, Predictions, Race

IMAGES, POPULATION = 1024, 50
SPACE = Struct(a=Choice(*range(12)), b=Choice(*range(12)), c=Choice(*range(12)))


def costs(arch: Arch) -> dict[str, float]:
    return {"params": arch.a + arch.b + arch.c}


def outcomes(arch: Arch, numbers: Tensor) -> Tensor:
    """The larger an arch the more images it recognises: the easy ones, but for some that are its own."""
    skill = (arch.a + arch.b + arch.c) / 33
    difficulty = (torch.arange(IMAGES) * 0.6180339887) % 1
    luck = (torch.arange(IMAGES) * (7 + arch.a * 144 + arch.b * 12 + arch.c) * 0.7548776662) % 1
    right = (difficulty < 0.3 + 0.5 * skill) ^ (luck < 0.02)
    return torch.stack([right.float(), 1 - right.float()])[:, numbers]


def candidate(number: int, arch: Arch, scores: dict[str, float]) -> Candidate:
    return Candidate(number, 0, "random", (), arch, scores)


def best_of(confidence: Confidence = CONFIDENCE["parents"], **options: Any) -> tuple[Any, Race]:
    race = Race(outcomes, IMAGES, SPACE.encode, parents=10, confidence=confidence)
    found = search(SPACE, race, costs, options={"generations": 5}, on_candidate=race.observe, **options)
    return found, race


def judge(arch: Arch) -> dict[str, float]:
    return {"accuracy": float(outcomes(arch, torch.arange(IMAGES))[0].mean())}


@pytest.mark.parametrize(("racing", "share"), [("parents", 0.4), ("best", 0.3)])
@pytest.mark.parametrize("seed", range(3))
def test_the_winner_is_that_of_full_evaluation(seed: int, racing: str, share: float) -> None:
    found, race = best_of(CONFIDENCE[racing], seed=seed)
    full = search(SPACE, judge, costs, options={"generations": 5}, seed=seed)
    assert found.best.scores["accuracy"] == judge(found.best.arch)["accuracy"] == full.best.scores["accuracy"]
    assert found.best.scores["images"] == IMAGES
    assert race.seen < share * IMAGES * len(found.candidates)
    assert race.seen == sum(one.scores["images"] for one in found.candidates)
    assert min(one.scores["images"] for one in found.candidates) < IMAGES / 10


def test_dropped_candidates_score_below_the_parents() -> None:
    found, _ = best_of()
    whole = [one.scores["accuracy"] for one in found.candidates if one.scores["images"] == IMAGES]
    tenth = sorted(whole)[-10]
    for one in found.candidates:
        exact = judge(one.arch)["accuracy"]
        if one.scores["images"] < IMAGES:
            assert one.scores["accuracy"] < tenth
            assert abs(one.scores["accuracy"] - exact) < 3 * one.scores["images"] ** -0.5
        else:
            assert one.scores["accuracy"] == exact


def test_the_first_archs_see_all_images() -> None:
    found, _ = best_of()
    assert all(one.scores["images"] == IMAGES for one in found.candidates[:FIRST])


def test_archs_with_nan_are_judged_as_by_full_evaluation() -> None:
    """Also where none of the first ones has finite answers, from which nothing can be predicted."""
    seen = 0

    def broken(arch: Arch) -> bool:
        return arch.a % 2 == 1

    def some_nan(arch: Arch, numbers: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        right = outcomes(arch, numbers)
        if broken(arch) or seen <= 2 * FIRST:
            right[1] = torch.nan
        return right

    race = Race(some_nan, IMAGES, SPACE.encode, parents=10)
    found = search(SPACE, race, costs, options={"generations": 3}, on_candidate=race.observe)
    assert not broken(found.best.arch)
    scores = [one.scores["accuracy"] for one in found.candidates]
    assert all(map(math.isnan, scores[: 2 * FIRST]))
    for one in found.candidates[2 * FIRST :]:
        assert math.isnan(one.scores["accuracy"]) == math.isnan(one.scores["loss"]) == broken(one.arch)


def test_a_race_goes_on_past_a_candidate_that_failed() -> None:
    race = Race(outcomes, IMAGES, SPACE.encode, parents=10)
    archs = [Arch(a=a, b=1, c=2) for a in range(FIRST + 2)]
    race.observe(candidate(0, archs[0], {"accuracy": math.nan, "failures": 3}))
    race.observe(candidate(1, archs[1], {"accuracy": math.nan, "loss": math.nan, "images": math.nan}))
    assert all(math.isfinite(scores["accuracy"]) for scores in race.many(archs[2:]))


def test_an_interrupted_race_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, _ = best_of(journal=tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    for stop in (5, 77, POPULATION * 4):
        (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[: stop + 1]))
        again, race = best_of(journal=tmp_path / "cut.jsonl")
        assert (tmp_path / "cut.jsonl").read_bytes() == b"".join(lines)
        assert again.best == whole.best
        generation = stop // POPULATION * POPULATION
        left = sum(int(one.scores["images"]) for one in whole.candidates[generation:])
        assert left <= race.seen <= left + REFERENCES * IMAGES  # these are judged once more


def test_one_that_is_as_good_is_dropped_seldom() -> None:
    """Beside the last of the parents, from which it differs by chance alone, as these do from each other."""
    dropped = 0
    for seed in range(200):
        source = torch.Generator().manual_seed(seed)
        common = torch.rand(IMAGES, generator=source) < 0.8
        nets = [common ^ (torch.rand(IMAGES, generator=source) < 0.1) for _ in range(FIRST + 1)]
        child = nets.pop()
        equalise(child, min(nets, key=lambda net: int(net.sum())))
        known = {Arch(a=number): net for number, net in enumerate([*nets, child])}
        race = Race(lambda arch, n, known=known: known[arch].float()[n].expand(2, -1), IMAGES, gene, FIRST, seed)  # type: ignore
        *_, last = race.many(list(known))
        dropped += last["images"] < IMAGES
    assert dropped < 0.1 * 200


def gene(arch: Arch) -> list[float]:
    return [float(arch.a)]


def equalise(net: Tensor, other: Tensor) -> None:
    """Has a net recognise exactly as many images as another."""
    lead = int(net.sum() - other.sum())
    different = torch.nonzero(net & ~other if lead > 0 else other & ~net).flatten()[: abs(lead)]
    net[different] = other[different]


def test_an_estimate_is_right_within_its_error() -> None:
    """Archs and images by the very model, of unrelated genes: nine in ten estimates are within two standard errors."""
    source = torch.Generator().manual_seed(0)
    easy, abilities = 2 * torch.randn(IMAGES, generator=source), torch.randn(90, generator=source)
    nets = (torch.rand(90, IMAGES, generator=source) < (easy + abilities[:, None]).sigmoid()).double()
    codes, known = torch.arange(90.0, dtype=torch.double)[:, None], nets[:40]
    predictions = Predictions(
        codes[:40], codes[:40], codes[40:], known.mean(1), torch.full((40,), IMAGES), torch.stack([known, known], dim=1)
    )
    for part, largest_error in ((64, 0.05), (256, 0.03)):
        inside = 0
        for number, net in enumerate(nets[40:]):
            expectation = predictions.expect(number)
            order = expectation.most_doubtful_first(torch.arange(IMAGES))
            judgement = expectation.judge(order, net[order[:part]].expand(2, -1))
            inside += abs(judgement.score - float(net.mean())) < 2 * judgement.error < 2 * largest_error
        assert inside >= 0.9 * 50


def test_genes_tell_the_score_and_the_images() -> None:
    """Nets of the first gene recognise one half of the images, those of the second gene the other, and some more."""
    nets = torch.zeros(20, IMAGES, dtype=torch.double)
    codes = torch.tensor([[float(number % 2), float(number // 2)] for number in range(20)], dtype=torch.double)
    nets[::2, : IMAGES // 2] = 1
    nets[1::2, IMAGES // 4 :] = 1
    scores, images = nets[:16].mean(1), torch.full((16,), IMAGES)
    predictions = Predictions(
        codes[:16], codes[:16], codes[16:], scores, images, torch.stack([nets[:16], nets[:16]], dim=1)
    )
    for number, net in enumerate(nets[16:]):
        expectation = predictions.expect(number)
        assert abs(float(predictions.log_odds[number].sigmoid()) - float(net.mean())) < 0.05
        answers = (expectation.log_odds + expectation.ability).sigmoid().round()
        assert float((answers == net).double().mean()) > 0.95


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_arch_with_nan_neither_wins_nor_spoils_the_model(bad: float) -> None:
    def broken(arch: Arch, numbers: Tensor) -> Tensor:
        result = outcomes(arch, numbers)
        if (arch.a + arch.b) % 7 == 3:
            result[0], result[1] = 1.0, bad
        return result

    race = Race(broken, IMAGES, SPACE.encode, parents=10)
    found = search(SPACE, race, costs, options={"generations": 4}, on_candidate=race.observe)
    nan = [one for one in found.candidates if (one.arch.a + one.arch.b) % 7 == 3]
    assert nan
    assert all(one.scores["accuracy"] != one.scores["accuracy"] for one in nan)
    assert found.best not in nan
    assert all(0 < one.scores["accuracy"] < 1 for one in found.candidates if one not in nan)
    assert all(math.isfinite(one.scores["loss"]) for one in found.candidates if one not in nan)


@pytest.mark.parametrize("racing", ["parents", "best"])
def test_an_arch_with_nan_for_a_few_images_does_not_win_by_the_others(racing: str) -> None:
    """Those of much skill recognise all images, but for a few that a race looks at late."""
    easy = torch.arange(IMAGES) < 8

    def broken(arch: Arch, numbers: Tensor) -> Tensor:
        if arch.a < 8:
            return outcomes(arch, numbers)
        return torch.stack([torch.ones(len(numbers)), torch.where(easy[numbers], torch.nan, 0.1)])

    race = Race(broken, IMAGES, SPACE.encode, parents=10, confidence=CONFIDENCE[racing])
    found = search(SPACE, race, costs, options={"generations": 5}, on_candidate=race.observe)
    whole = [one for one in found.candidates if one.arch.a >= 8 and one.scores["images"] == IMAGES]
    assert whole
    assert all(math.isnan(one.scores["accuracy"]) for one in whole)
    assert found.best.arch.a < 8
    assert found.best.scores["images"] == IMAGES


SEARCHES: dict[str, dict[str, Any]] = {
    "parents": {"racing": "parents"},
    "best": {"racing": "best"},
    "two objectives": {"objectives": ("accuracy", "-params")},
}


@pytest.mark.parametrize("asked", SEARCHES.values(), ids=SEARCHES)
def test_subnets_with_nan_lose_and_the_journal_says_so(asked: dict[str, Any], tmp_path: Path) -> None:
    net = tiny.supernet()
    with torch.no_grad():
        net.weights.blocks[1].mlp.fc2.bias.fill_(torch.nan)  # of archs with two blocks
    options, journal = {"population": 12, "generations": 3, "parents": 4}, tmp_path / "journal.jsonl"
    found = search_supernet(net, tiny.DATA, options=options, journal=journal, quiet=True, **asked)
    lines = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    assert {line["accuracy"] is None for line in lines} == {True, False}
    assert all((line["accuracy"] is None) == (len(line["arch"]["blocks"]) == 2) for line in lines)
    assert all(len(one.arch.blocks) == 1 for one in [found.best, *found.front])


def test_few_images_are_one_part() -> None:
    race = Race(lambda arch, numbers: torch.ones(2, len(numbers)), 10, gene, parents=1)
    assert race(Arch(a=1))["images"] == 10


def test_outcomes_add_up_to_the_evaluation() -> None:
    net = tiny.supernet()
    subnets = SubnetEvaluator(net, Batches(tiny.DATA, tiny.PLAIN, 64))
    numbers = torch.arange(len(tiny.DATA.holdout))
    for arch in (tiny.SMALLEST, tiny.LARGEST):
        correct, loss = subnets.outcomes(arch, numbers).double().mean(1).tolist()
        scores = subnets(arch)
        assert correct == pytest.approx(scores["accuracy"])
        assert loss == pytest.approx(scores["loss"])
        back = subnets.outcomes(arch, numbers.flip(0)).flip(1)
        torch.testing.assert_close(back, subnets.outcomes(arch, numbers))


def test_a_race_of_subnets() -> None:
    options = {"population": 8, "generations": 2, "parents": 2}
    found = search_supernet(tiny.supernet(), tiny.DATA, options=options, racing="best", quiet=True)
    assert found.best.scores["images"] == len(tiny.DATA.holdout)


def test_the_journal_says_how_many_images_a_score_rests_on(tmp_path: Path, capsys: Any) -> None:
    asked = {"search": {"population": 4, "generations": 2, "parents": 2, "racing": "parents"}}
    assert main(small_run.words("run", tmp_path / "run", **asked)) == 0
    header, *lines = [json.loads(line) for line in RunFolder(tmp_path / "run").journal.read_text().splitlines()]
    assert header["settings"]["racing"] == "parents"
    assert all(0 < line["images"] <= 288 for line in lines)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": {"racing": "parents", "objectives": ["accuracy", "-params"]}}, "by accuracy alone"),
        ({"search": {"racing": "parents", "objectives": ["-loss"]}}, "by accuracy alone"),
        ({"search": {"racing": "parents"}, "proxy": "dss"}, "proxies need none; leave --search.racing out"),
        ({"search": {"racing": "parents"}, "executor": "ray"}, "by those before it, in this process; leave --executor"),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    """All of them before anything is trained."""
    monkeypatch.setattr("nasformer.runs.pools.find_spec", lambda name: name)  # as if Ray were there
    drop = ("train", "finish", "export") if "proxy" in changes else ()
    command = "search" if "proxy" in changes else "run"
    settings = {name: value for name, value in (small_run.SETTINGS | changes).items() if name not in drop}
    path = tmp_path / "asked.yaml"
    path.write_text(json.dumps(settings))
    assert message in small_run.refused(capsys, [command, "--config", str(path), "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run" / "train").exists()
