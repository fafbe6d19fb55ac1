"""Questions about images: files, vocabulary, VQA's accuracy, batches, and runs by the command line."""

from __future__ import annotations

import json
import pickle
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import kill
import tiny  # noqa: F401 - one thread, as for all small tensors
from families.small import family_space, images, randomise, small_space
from nasformer.cli.main import main
from nasformer.data.files import BadImages
from nasformer.data.loaders import ImageText
from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.layers.vqa import VQAHead
from nasformer.models.dense import dense_space
from nasformer.models.registry import list_families
from nasformer.models.storage import load_model
from nasformer.supernet.supernet import Supernet
from nasformer.tasks.options import VQAOptions
from nasformer.tasks.vqa import QuestionBatches, TextEncoder, VQAAccuracy, answer_scores, open_questions
from nasformer.utils.files import read_json
from small_run import json_output, output, refused
from tasks.shapes import write_questions

# A net with one map and one with four; the others take longer.
FAMILIES = [
    pytest.param(name, marks=() if name in ("autoformer", "s3") else pytest.mark.slow) for name in list_families()
]
SETTINGS: dict[str, Any] = {
    "task": "vqa",
    "space": "autoformer-micro",
    "img_size": 32,
    "patch_size": 8,
    "workers": 0,
    "vqa": {"decoder_dim": 32, "max_words": 6},
    "train": {"epochs": 2, "batch_size": 12, "lr": 0.003, "checkpoint_seconds": 0.0},
    "export": False,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_questions(tmp_path / "set", train=6, val=2, test=3)


def opened(root: Path, max_bad: float = 0.0, **options: Any) -> tuple[Any, BadImages]:
    bad = BadImages(max_bad, quiet=True, what="questions and images cannot be used")
    return open_questions(root, VQAOptions(**options), bad, holdout=0.2, seed=0), bad


# Files


def test_questions_are_read_with_their_words_and_answers(root: Path) -> None:
    data, _ = opened(root)
    assert data.labels.classes == ["no", "disc", "square"]  # the most frequent first
    assert data.labels.words[0] == "is"  # in every question, and before "there" in the alphabet
    assert [len(part) for part in data.splits.parts()] == [12, 4, 6]
    assert not {*data.splits.train.images} & {*data.splits.holdout.images}
    assert opened(root, answers=2)[0].labels.classes == ["no", "disc"]


def test_files_named_as_vqa_names_them_are_read(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "vqa"
    for part, name in (("train", "train2014"), ("test", "val2014")):
        content = json.loads((root / part / "questions.json").read_text())
        (target / name).mkdir(parents=True)
        for image in (root / part / "images").iterdir():
            (target / name / f"COCO_{name}_{image.stem[-6:]}.png").write_bytes(image.read_bytes())
        for kind, file in (("questions", "v2_OpenEnded_mscoco"), ("annotations", "v2_mscoco")):
            (target / f"{file}_{name}_{kind}.json").write_text(json.dumps({kind: content[kind]}))
    assert [len(part) for part in opened(target)[0].splits.parts()] == [8, 4, 6]  # images 4, 2, 3


def change(root: Path, edit: Any) -> None:
    path = root / "train" / "questions.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda content: content["annotations"].pop(0), "it has no answer"),
        (lambda content: content["questions"][0].update(image_id=77), "there is no image 77 in"),
        (lambda content: content["questions"][0].update(question="?!"), "it has no words"),
    ],
)
def test_questions_that_cannot_be_used_are_left_out_and_named(root: Path, edit: Any, reason: str) -> None:
    change(root, edit)
    with pytest.raises(UserError, match=r"1 of 22 questions and images cannot be used: .*question 0"):
        opened(root)
    data, bad = opened(root, max_bad=0.5)
    assert reason in next(iter(bad.reasons.values()))
    assert sum(len(part) for part in data.splits.parts()) == 21


def test_broken_images_take_their_questions_with_them(root: Path) -> None:
    (root / "train" / "images" / "shape_000000.png").write_bytes(b"no image")
    data, bad = opened(root, max_bad=0.5)
    assert len(bad.reasons) == 1
    assert sum(len(part) for part in data.splits.parts()) == 20


def test_files_of_another_kind_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no questions; expected train/questions.json and train/images"):
        opened(tmp_path)
    change(root, lambda content: content["questions"][0].pop("question"))
    with pytest.raises(UserError, match="an entry of questions has no question"):
        opened(root)


# Accuracy


def test_accuracy_is_vqas_own_where_ten_humans_answered() -> None:
    """By the official definition: the mean over the ten sets of nine other answers."""
    answers = ["red"] * 2 + ["blue"] * 8
    others = [answers[:number] + answers[number + 1 :] for number in range(10)]
    for answer in ("red", "blue", "green"):
        official = sum(min(1, nine.count(answer) / 3) for nine in others) / 10
        assert answer_scores(answers, "blue").get(answer, 0.0) == pytest.approx(official)
    assert answer_scores(["red", "blue"], "red") == {"red": 1.0}


def test_the_metric_is_the_mean_worth_of_what_is_chosen() -> None:
    metric = VQAAccuracy()
    metric.update(torch.eye(3), torch.tensor([[0.6, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.3]]))
    assert metric.compute()["vqa_accuracy"] == pytest.approx((0.6 + 1.0 + 0.3) / 3)


# Models and batches


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_head_alone_and_in_a_supernet(family: str) -> None:
    options = {"decoder_dim": 8, "vocab_size": 9, "max_words": 4}
    space = dense_space(small_space(family_space(family), num_classes=5), "vqa", **options)
    supernet, arch = randomise(Supernet(space)).eval(), space.root.smallest()
    x = ImageText(images(space), torch.tensor([[2, 3, 0, 0], [8, 1, 4, 5]]))
    model = supernet.extract(arch)
    assert model(x).shape == (2, 5)
    torch.testing.assert_close(supernet(x, arch), model(x))
    assert space.cost(arch).params == sum(weight.numel() for weight in model.parameters())
    other = ImageText(x.images, x.words.roll(1, 0))
    assert not torch.allclose(model(other), model(x))


@pytest.mark.parametrize(
    ("text", "words"), [({"vocab_size": 11}, torch.ones(1, 7).long()), ({"text_dim": 9}, torch.ones(1, 7, 9))]
)
def test_the_cost_of_the_head_is_what_a_counter_sees(text: dict[str, int], words: Any) -> None:
    sizes: dict[str, Any] = {"dim": 64, "depth": 2, "max_words": 7, **text}
    shape = ((4, 6), ((6, 8), (3, 4)), (12, 16), 5)
    head = VQAHead(*shape, **sizes).eval()
    with FlopCounterMode(display=False) as counter:  # without gradients, a fused kernel hides what it does
        head([torch.randn(1, 4, 6, 8), torch.randn(1, 6, 3, 4), words])
    assert counter.get_total_flops() == 2 * VQAHead.cost(*shape, **sizes).macs
    assert sum(weight.numel() for weight in head.parameters()) == VQAHead.cost(*shape, **sizes).params


def test_words_behind_the_question_do_not_matter() -> None:
    head = randomise(VQAHead((6,), ((2, 2),), (8, 8), 5, dim=8, vocab_size=9, max_words=3)).eval()
    x, words = torch.randn(1, 6, 2, 2), torch.tensor([[4, 5, 0]])
    with torch.no_grad():
        before = head([x, words])
        head.words.weight[0] += 1
        torch.testing.assert_close(head([x, words]), before)
        assert not torch.allclose(head([x, words.roll(1)]), before)


def test_every_position_of_every_map_and_its_place_reach_the_answer() -> None:
    shape = ((4, 6), ((4, 4), (2, 2)), (8, 8), 5)
    head = randomise(VQAHead(*shape, dim=8, vocab_size=9, max_words=3)).eval()
    maps = [torch.randn(1, 4, 4, 4, requires_grad=True), torch.randn(1, 6, 2, 2, requires_grad=True)]
    words = torch.tensor([[4, 5, 0]])
    answer = head([*maps, words])
    answer[0, 0].backward()
    assert all((x.grad.abs().sum(1) > 0).all() for x in maps if x.grad is not None)
    assert not torch.allclose(head([maps[0].flip(3), maps[1].flip(3), words]), answer)


def test_a_fresh_head_holds_each_answer_for_improbable() -> None:
    """Of 500 answers one is right: a mean of one half would cost hundreds of steps."""
    head = VQAHead((6,), ((2, 2),), (8, 8), 500, dim=8, vocab_size=9, max_words=3).eval()
    logits = head([torch.randn(4, 6, 2, 2), torch.ones(4, 3).long()])
    assert logits.sigmoid().sum(1).tolist() == pytest.approx([1.0] * 4, rel=0.2)


@pytest.mark.parametrize(
    ("text", "words"), [({"vocab_size": 11}, torch.arange(2, 11)[None]), ({"text_dim": 48}, torch.randn(1, 9, 48))]
)
def test_words_still_differ_behind_the_first_block_of_a_fresh_head(text: dict[str, int], words: Any) -> None:
    """Where they begin much smaller than what a block adds to all of them, they all look alike."""
    torch.manual_seed(0)
    head, seen = VQAHead((6,), ((4, 4),), (8, 8), 5, dim=64, max_words=9, **text).eval(), list[torch.Tensor]()
    head.blocks[0].register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    head([torch.randn(1, 6, 4, 4), words])
    likeness = torch.nn.functional.cosine_similarity(seen[0][:, None], seen[0][None], dim=-1)
    assert likeness[~torch.eye(10, dtype=torch.bool)].mean() < 0.2


def test_the_words_attend_to_as_many_maps_as_are_asked_for() -> None:
    space = small_space(family_space("s3"), num_classes=5)
    for count, read in ((1, 1), (3, 3), (9, 4)):
        model = dense_space(space, "vqa", decoder_dim=8, num_maps=count)
        assert len(model.plan(model.root.smallest())[-1].inputs) == read


def test_images_are_not_mirrored(root: Path) -> None:
    with pytest.raises(UserError, match="questions ask for left and right"):
        QuestionBatches(opened(root)[0], AugmentOptions(hflip=0.5), 4, img_size=32)


# Runs


def words(command: str, folder: Path, data: Path, *more: str, **changes: Any) -> list[str]:
    path = folder.parent / f"{folder.name}.json.yaml"
    settings = {
        key: value | changes.pop(key, {}) if isinstance(value, dict) else value for key, value in SETTINGS.items()
    }
    path.write_text(json.dumps(settings | changes))
    return [command, *more, "--config", str(path), "--data", str(data), "--out", str(folder)]


def test_from_training_to_answers(tmp_path: Path, capsys: Any) -> None:
    data, run, out = write_questions(tmp_path / "set"), tmp_path / "run", tmp_path / "evaluation"
    assert main(words("retrain", run, data, "--arch", "smallest")) == 0
    text = capsys.readouterr()
    assert "test VQA accuracy" in text.out
    assert "mirrored" not in text.err
    scores = json_output(capsys, "evaluate", run, "--data", data, "--out", out)
    assert scores["vqa_accuracy"] == pytest.approx(read_json(run / "result.json")["winner"]["test_vqa_accuracy"])
    assert [kind["name"] for kind in scores["by_class"]] == ["is", "what"]
    others = write_questions(tmp_path / "others", train=1, val=1, test=1)  # fewer answers than the model knows
    assert json_output(capsys, "evaluate", run, "--data", others)["images"] == 2
    assert {path.name for path in out.glob("*.png")} == {"best.png", "median.png", "worst.png"}
    image = str(data / "test" / "images" / "shape_000016.png")
    (found,) = json_output(capsys, "predict", run, image, "--question", "Is there a square?")
    assert {*found["answers"]} == {"no", "disc", "square"}
    same = output(capsys, "predict", run, image, "--question", "is there a square")
    assert same.startswith(f"{image}: {found['answers'][0]} ")
    assert "say what to ask about the images" in refused(capsys, ["predict", str(run), image])
    assert "the question '???' has no words" in refused(capsys, ["predict", str(run), image, "--question", "???"])
    exported = tmp_path / "exported"
    assert main(["export", str(run), "--to", str(exported)]) == 0
    assert {path.name for path in exported.iterdir()} >= {"model.py", "model.pt2"}
    module = runpy.run_path(str(exported / "model.py"))
    answers = dict(module["predict"](image, "Is there a square?"))
    assert answers == pytest.approx(dict(zip(found["answers"], found["probabilities"], strict=True)), abs=1e-4)
    assert "`words` are numbers [batch, " in (exported / "README.md").read_text()


def test_a_model_that_is_trained_on_keeps_its_words(tmp_path: Path) -> None:
    """Other questions have other words, and as many of them: rows of weights would stand for other words unnoticed."""
    data, others = (write_questions(tmp_path / name, train=6, val=2, test=2) for name in ("set", "others"))
    file = others / "train" / "questions.json"
    file.write_text(file.read_text().replace("square?", "box?"))
    once = {"epochs": 1, "lr": 0.0}
    assert main(words("retrain", tmp_path / "run", data, "--arch", "smallest", train=once)) == 0
    settings = {"train": once, "space": None, "patch_size": None, "vqa": {"max_words": 9}}
    assert main(words("finetune", tmp_path / "more", others, str(tmp_path / "run"), **settings)) == 0
    before, after = (read_json(tmp_path / name / "model" / "config.json") for name in ("run", "more"))
    assert after["words"] == before["words"]
    assert "square" in after["words"]
    assert after["options"]["max_words"] == before["options"]["max_words"] == 6


@pytest.mark.slow
def test_a_killed_training_ends_as_if_undisturbed_and_archs_are_searched(tmp_path: Path, capsys: Any) -> None:
    data, whole, killed = write_questions(tmp_path / "set"), tmp_path / "whole", tmp_path / "killed"
    train = {"epochs": 200}
    assert main(words("retrain", whole, data, "--arch", "smallest", train=train)) == 0
    assert read_json(whole / "result.json")["winner"]["test_vqa_accuracy"] == 1.0
    command = kill.nasformer(*words("retrain", killed, data, "--arch", "smallest", train=train))
    assert kill.kill(command, lambda: any(killed.glob("train/checkpoints/*")), 0.3)
    assert not (killed / "result.json").exists()
    assert main(command[3:]) == 0
    state, undisturbed = (load_model(path / "model").state_dict() for path in (killed, whole))
    assert all(torch.equal(state[name], weight) for name, weight in undisturbed.items())
    capsys.readouterr()
    image = data / "test" / "images" / "shape_000016.png"
    for question, answer in (("What shape is there?", "disc"), ("Is there a square?", "no")):
        (found,) = json_output(capsys, "predict", whole, image, "--question", question)
        assert found["answers"][0] == answer
    changes = {"finish": "none", "max_params": "90K", "search": {"population": 3, "generations": 1}}
    result = json_output(capsys, *words("run", tmp_path / "run", data, **changes))
    assert result["winner"]["params"] <= 90_000
    journal = (tmp_path / "run" / "search" / "journal.jsonl").read_text().splitlines()
    scores = [line["vqa_accuracy"] for line in map(json.loads, journal) if "vqa_accuracy" in line]
    assert result["winner"]["holdout_vqa_accuracy"] == pytest.approx(max(scores))


def test_archs_race_on_questions(tmp_path: Path, capsys: Any) -> None:
    data = write_questions(tmp_path / "set", train=12, val=30, test=4)
    search = {"population": 8, "generations": 3, "parents": 3, "racing": "best"}
    changes = {"finish": "none", "max_params": "90K", "search": search, "train": {"epochs": 12}}
    result = json_output(capsys, *words("run", tmp_path / "run", data, **changes))
    journal = (tmp_path / "run" / "search" / "journal.jsonl").read_text().splitlines()
    whole = [line for line in map(json.loads, journal) if line.get("images") == 60]
    assert len(whole) >= 10
    assert result["winner"]["holdout_vqa_accuracy"] == pytest.approx(max(line["vqa_accuracy"] for line in whole))


@pytest.mark.parametrize("task", ["segment", "panoptic", "detect"])
def test_scores_of_all_images_together_are_no_race(task: str, tmp_path: Path, capsys: Any) -> None:
    command = ["run", "--task", task, "--space", "s3-micro", "--search.racing", "best", "--data", str(tmp_path)]
    message = refused(capsys, [*command, "--out", str(tmp_path / "run")])
    assert "is none, but of all images together: leave --search.racing out" in message


# A pretrained text encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny text encoder of transformers with random weights, in a folder."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "shape", "is", "there", "a", "square", "disc", "?"]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    return folder


def test_an_encoder_reads_each_question_once_and_words_behind_it_do_not_matter(encoder: Path) -> None:
    text, cpu = TextEncoder(str(encoder), 8), torch.device("cpu")
    found = text(["what shape is there ?", "is there a disc ?", "is there a disc ?"], cpu)
    assert found.shape == (3, 8, 16)
    assert torch.equal(found[1], found[2])
    assert not torch.allclose(found[0], found[1])
    assert found[1].any(-1).tolist() == [True] * 7 + [False]
    assert list(text.features_of) == ["what shape is there ?", "is there a disc ?"]
    assert torch.equal(pickle.loads(pickle.dumps(text))(["is there a disc ?"], cpu)[0], found[1])


@pytest.mark.slow
def test_questions_that_an_encoder_has_read_are_learned(encoder: Path, tmp_path: Path, capsys: Any) -> None:
    data, run, exported = write_questions(tmp_path / "set"), tmp_path / "run", tmp_path / "exported"
    assert main(words("retrain", run, data, "--arch", "smallest", vqa={"text": str(encoder)})) == 0
    model = load_model(run / "model")
    assert model.options["text_dim"] == 16
    scores = json_output(capsys, "evaluate", run, "--data", data)
    assert scores["vqa_accuracy"] == pytest.approx(read_json(run / "result.json")["winner"]["test_vqa_accuracy"])
    image = str(data / "test" / "images" / "shape_000016.png")
    (found,) = json_output(capsys, "predict", run, image, "--question", "Is there a square?")
    assert {*found["answers"]} == {"no", "disc", "square"}
    assert main(["export", str(run), "--to", str(exported), "--formats", "python,pt2"]) == 0
    assert "def predict" not in (exported / "model.py").read_text()
    assert "features [batch, 6, 16] of the text encoder" in (exported / "README.md").read_text()


def test_an_encoder_that_cannot_be_loaded_is_refused(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    data, nowhere = write_questions(tmp_path / "set"), str(tmp_path / "nowhere")
    command = words("retrain", tmp_path / "run", data, "--arch", "smallest", vqa={"text": nowhere})
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "--vqa.text needs transformers; install it: pip install 'nasformer[vqa]'" in refused(capsys, command)


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("transformers")
    data, nowhere = write_questions(tmp_path / "set"), str(tmp_path / "nowhere")
    command = words("retrain", tmp_path / "run", data, "--arch", "smallest", vqa={"text": nowhere})
    assert f"cannot load the text encoder {nowhere}" in refused(capsys, command)
