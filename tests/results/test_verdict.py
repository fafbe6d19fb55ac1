"""The verdict on a run: whether the search paid, what to take, and what to do next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nasformer.cli.commands.search import result_rows
from nasformer.results.contents import LogLine, RunContents
from nasformer.results.folder import RunFolder
from nasformer.results.result import ImageCounts, RunResult
from nasformer.results.verdict import judge, search_gain, still_falling
from nasformer.search.journal import JournalSettings
from nasformer.search.problem import ModelResult
from nasformer.supernet.health import SupernetHealth
from nasformer.utils.files import write_json

PHOTOS = JournalSettings(model_options={"img_size": 64})
HEALTH = SupernetHealth([], 0.5, 0.6, 0.55, (0.5, 0.6), 0.5, healthy=True)


def model(name: str, accuracy: float, params: int = 100_000) -> ModelResult:
    return ModelResult(name, {}, {"params": params, "test_accuracy": accuracy, "holdout_accuracy": accuracy})


def contents(winner: float, *references: ModelResult, images: int = 1000, **more: object) -> RunContents:
    counts = ImageCounts(holdout=images, test=images, classes=10)
    result = RunResult("s", "d", model("winner", winner), list(references), images=counts, health=HEALTH)
    return RunContents(RunFolder(Path("run")), {}, result=replace(result, **more))  # type: ignore[arg-type]


def random_models(*accuracies: float) -> list[ModelResult]:
    return [model(f"random {number}", accuracy) for number, accuracy in enumerate(accuracies, 1)]


def test_the_table_begins_with_what_is_shipped_and_marks_inherited_weights() -> None:
    def scored(name: str, accuracy: float) -> ModelResult:
        return model(name, accuracy).with_scores({"macs": 5})

    random = [scored("random", 0.7), scored("random 2", 0.8)]
    result = RunResult("s", "d", scored("winner", 0.8), [*random, scored("timm:resnet18", 0.9)])
    rows = result_rows(result, ["test_accuracy"])
    assert [row[0] for row in rows] == ["winner", "mean of 2 random", "timm:resnet18"]
    assert rows[1] == ["mean of 2 random", "100K", "5", "75.00% ± 5.00%"]
    finished = replace(result, finished=scored("winner, finetuned", 0.85))
    names = [row[0] for row in result_rows(finished, ["test_accuracy"])]
    assert names[:2] == ["winner, finetuned", "winner (inherited)"]
    assert names[2:] == ["mean of 2 random (inherited)", "timm:resnet18"]


def test_a_search_that_paid_says_by_how_much_with_the_interval() -> None:
    verdict = judge(contents(0.90, *random_models(0.80, 0.82, 0.78, 0.80, 0.80)))
    assert verdict
    assert verdict.sentences[0].startswith("The search paid: the winner is 10.0 points above the mean of 5 random")
    assert "95 % interval +6.7 to +13.3 points" in verdict.search
    assert verdict.take.startswith("Take the winner (100K parameters): 90.0% of 1,000 test images")
    assert "interval 88.0 to 91.7 %" in verdict.take


def test_a_search_within_noise_did_not_pay() -> None:
    verdict = judge(contents(0.426, model("random", 0.42), images=80))
    assert verdict
    assert verdict.sentences[0].startswith("The search did not pay: the winner is 0.6 points above a random")
    assert "within noise" in verdict.sentences[0]


def test_a_winner_below_random_nets_did_not_pay() -> None:
    verdict = judge(contents(0.6, *random_models(0.8, 0.8)))
    assert verdict
    assert "did not pay: the winner is 20.0 points below" in verdict.search
    assert "noise" not in verdict.search


def test_the_spread_of_random_nets_widens_the_interval() -> None:
    close, wide = (search_gain(contents(0.9, *random_models(*rest)).result) for rest in ((0.8, 0.8), (0.7, 0.9)))
    assert close
    assert wide
    assert wide.margin > close.margin


def test_a_better_baseline_is_what_to_take() -> None:
    run = contents(0.42, model("random", 0.42), model("timm:resnet18", 0.84, 11_000_000), images=80)
    verdict = judge(run)
    assert verdict
    assert verdict.take.startswith("Take timm:resnet18 (11M parameters): 84.0%")
    assert verdict.others[0].startswith("timm:resnet18 is 42.0 points better than the winner (+")
    limited = judge(replace(run, limits={"params": (None, 150_000)}))
    assert limited
    assert limited.take.startswith("Take the winner")
    assert "beyond the budget (11M parameters)" in limited.others[0]


def test_a_smaller_baseline_that_is_as_good_is_named() -> None:
    verdict = judge(contents(0.9, model("timm:small", 0.895, 50_000)))
    assert verdict
    assert "timm:small (50K parameters) is as good within noise" in verdict.others[0]


def test_a_smaller_net_of_the_space_is_compared_with_inherited_weights() -> None:
    small, finished = model("smallest", 0.89, 30_000), model("winner, finetuned", 0.99)
    verdict = judge(contents(0.9, small, finished=finished))
    assert verdict
    assert verdict.take.startswith("Take the winner, finetuned")
    assert "smallest, 30% of the winner's parameters" in verdict.others[0]


def test_a_smaller_net_that_may_be_guessing_is_not_recommended() -> None:
    few = judge(contents(0.25, model("smallest", 0.1, 30_000), images=40))
    assert few
    assert not few.others


WORDS = {0.7: "It is 20.0 points above a uniform", 0.9: "as good within noise", 1.0: "search longer"}


@pytest.mark.parametrize(("accuracy", "words"), WORDS.items())
def test_a_uniform_cut_is_compared_with_inherited_weights(accuracy: float, words: str) -> None:
    verdict = judge(contents(0.9, model("uniform", accuracy), finished=model("winner, finetuned", 0.99)))
    assert verdict
    assert words in verdict.others[0]
    assert "both with inherited weights" in verdict.others[0]


def test_advice_follows_from_the_run() -> None:
    run = contents(0.5, model("random", 0.5), images=80)
    falling = [LogLine(step, loss=3 - 0.1 * step) for step in range(20)]
    settings = JournalSettings(model_options={"img_size": 64, "patch_size": 16})
    verdict = judge(replace(run, log=falling, settings=settings, config={"train": {"epochs": 30}}))
    assert verdict
    advice = "\n".join(verdict.advice)
    assert "train longer (--train.epochs 60)" in advice
    assert "--patch-size 8" in advice
    assert "with 80 held-out images, nets that differ by less than" in advice
    assert "--search.random_references" in advice
    assert "--baseline" in advice
    assert "--from timm:" not in advice  # nobody says that these are photos
    sound = judge(contents(0.99, *random_models(*[0.9] * 5), model("timm:resnet18", 0.9, 10**7)))
    assert sound
    assert sound.advice == []


def test_advice_on_patches_goes_by_the_model_that_is_there(tmp_path: Path) -> None:
    run = replace(contents(0.5, model("random", 0.5)), folder=RunFolder(tmp_path), config={"space": "autoformer-tiny"})
    write_json(run.folder.model / "config.json", {"options": {"img_size": 14, "patch_size": 2}})
    assert "patches" not in "".join(found.advice if (found := judge(run)) else "")
    write_json(run.folder.model / "config.json", {"options": {"img_size": 32, "patch_size": 8}})
    assert "smaller patches (--patch-size 4): images of 32 px have only 4 x 4" in "".join(
        found.advice if (found := judge(run)) else ""
    )
    assert run.result
    tuned = replace(run, result=replace(run.result, winner=model("finetuned", 0.5), references=[]))
    assert "larger images (--img-size 64)" in "".join(found.advice if (found := judge(tuned)) else "")


def test_photos_that_are_learned_badly_call_for_a_pretrained_net() -> None:
    def advice(accuracy: float, **config: str) -> str:
        run = contents(accuracy, *random_models(*[0.1] * 5))
        verdict = judge(replace(run, config={"space": "autoformer-tiny", **config}, settings=PHOTOS))
        assert verdict
        return "\n".join(verdict.advice)

    assert "start from a pretrained net (--from timm:deit_tiny_patch16_224)" in advice(0.3)
    assert "try smaller patches (--patch-size 8): images of 64 px have only 4 x 4" in advice(0.3)  # the space's own
    assert "--from" not in advice(0.9)
    assert "--from" not in advice(0.3, from_="timm:deit_tiny_patch16_224")


def test_a_level_or_noisy_loss_does_not_fall() -> None:
    assert still_falling([LogLine(step, loss=1.0) for step in range(20)]) == 0
    assert still_falling([LogLine(step, loss=1.0 + step % 2) for step in range(20)]) == 0
    assert still_falling([LogLine(step, loss=20.0 - step) for step in range(5)]) == 0


def test_guessing_is_called_guessing() -> None:
    verdict = judge(contents(0.12, images=80))
    assert verdict
    assert "no better than guessing among 10 classes" in verdict.take


def test_there_is_no_verdict_without_accuracies_or_without_their_number() -> None:
    run = contents(0.9)
    assert judge(replace(run, result=replace(run.result, images=None))) is None  # type: ignore[type-var]
    assert judge(replace(run, result=None)) is None


@pytest.mark.parametrize("name", ["retrained", "finetuned"])
def test_a_single_model_is_judged_without_a_search(name: str) -> None:
    result = RunResult("s", "d", model(name, 0.9), images=ImageCounts(0, 500, 10))
    verdict = judge(RunContents(RunFolder(Path("run")), {}, result=result))
    assert verdict
    assert verdict.sentences == [verdict.take]
    assert verdict.take.startswith(f"Take the {name} model")
