"""What the commands print, in which form, and how options are given."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import kill
import nasformer
import tiny
from nasformer.cli.main import COMMANDS, main
from nasformer.cli.parser import recipe_folder
from nasformer.models.storage import load_model
from nasformer.utils.files import read_json
from small_run import command_for, contents, json_output, output, parse, words

TINY = nasformer.get_space("autoformer-tiny")
SMALL = {"embed_dim": 192, "blocks": [{"num_heads": 3, "mlp_ratio": 3.5}] * 12}
COLUMNS = {"embed_dim": 192, "depth": 12, "num_heads": [3] * 12, "mlp_ratio": [3.5] * 12}


def test_the_spaces_are_a_list_of_names(capsys: Any) -> None:
    names = json_output(capsys, "spaces")
    assert {"autoformer-tiny", "autoformer-small", "autoformer-base", "autoformer-micro"} <= set(names)
    assert [line.split()[0] for line in output(capsys, "spaces").splitlines()] == names


def test_a_space_is_described(capsys: Any) -> None:
    found = json_output(capsys, "spaces", "autoformer-tiny")
    assert found["cardinality"] == "1056964608"
    for end in ("smallest", "largest"):
        arch = TINY.arch(found[end]["arch"])
        assert arch == getattr(TINY.root, end)()
        assert (found[end]["params"], found[end]["macs"]) == (TINY.cost(arch).params, TINY.cost(arch).macs)
    assert "1,056,964,608" in output(capsys, "spaces", "autoformer-tiny")


def test_the_cost_of_an_arch_however_it_is_given(capsys: Any, tmp_path: Path) -> None:
    expected = TINY.costs(TINY.arch(SMALL))
    (tmp_path / "arch.json").write_text(json.dumps(SMALL))
    for source in (json.dumps(SMALL), json.dumps(COLUMNS), tmp_path / "arch.json"):
        assert json_output(capsys, "cost", "--space", "autoformer-tiny", "--arch", source) == expected
    preset = json_output(capsys, "cost", "--space", "autoformer-tiny", "--arch", "autoformer-t")
    assert preset == TINY.costs(TINY.presets["autoformer-t"])
    assert f"{expected['params']:,} parameters" in output(
        capsys, "cost", "--space", "autoformer-tiny", "--arch", tmp_path / "arch.json"
    )


def test_options_of_the_model_change_the_cost(capsys: Any) -> None:
    space = nasformer.get_space("autoformer-tiny", img_size=32, patch_size=4, num_classes=7, qkv_bias=False)
    options = ["--img-size", "32", "--patch_size", "4", "--num-classes=7", "--model.qkv_bias", "false"]
    found = json_output(capsys, "cost", "--space", "autoformer-tiny", "--arch", json.dumps(SMALL), *options)
    assert found == space.costs(space.arch(SMALL))


def test_samples_are_one_json_a_line_within_the_budget(capsys: Any) -> None:
    argv = ["sample", "--space", "autoformer-tiny", "--seed", "0", "-n", "5", "--max-params", "6M"]
    text = output(capsys, *argv)
    archs = [TINY.arch(line) for line in text.splitlines()]
    assert len(set(archs)) == 5
    assert all(TINY.cost(arch).params <= 6_000_000 for arch in archs)
    assert output(capsys, *argv) == text
    assert output(capsys, *argv[:3], "--seed=0", "--n=5", "--max_params=6_000_000") == text
    assert output(capsys, *argv[:4], "1", *argv[5:]) != text


def test_the_commands_one_after_the_other(capsys: Any, tmp_path: Path) -> None:
    """Train, search, extract, evaluate, with options that override those of the file."""
    run, model = tmp_path / "run", tmp_path / "model"
    train = words("train", run, train={"epochs": 9, "batch_size": 128})
    trained = json_output(
        capsys, *train, "--train.epochs", "1", "--train.log-epochs", "0.5", "--train.augment.hflip=0.25"
    )
    assert trained["supernet"] == str(run / "supernet")
    assert trained["loss"] == json.loads((run / "train" / "log.jsonl").read_text().splitlines()[-1])["loss"]
    recipe = read_json(run / "config.json")["train"]
    assert (recipe["epochs"], recipe["batch_size"], recipe["log_epochs"]) == (1, 128, 0.5)
    assert recipe["augment"]["hflip"] == 0.25

    result = json_output(capsys, *words("search", run), "--search.population", "3", "--max_params", "100K")
    assert result == read_json(run / "result.json")
    assert result["budget"] == "params <= 100K"
    assert len((run / "search" / "journal.jsonl").read_text().splitlines()) == 1 + 3 * 2

    extracted = json_output(capsys, "extract", run, "--to", model)
    assert extracted["arch"] == result["winner"]["arch"]
    assert extracted["params"] == sum(p.numel() for p in load_model(model).parameters())
    tiny.assert_same(load_model(model), load_model(run / "model"))

    for folder in (model, run):
        scores = json_output(capsys, "evaluate", folder, "--holdout", "0.2")
        assert scores["accuracy"] == result["winner"]["test_accuracy"] <= scores["top5"]
    held_out = json_output(capsys, "evaluate", model, "--split", "holdout", "--holdout", "0.2")
    assert held_out["accuracy"] == result["winner"]["holdout_accuracy"]


def test_an_arch_of_ones_own_is_extracted_and_evaluated(capsys: Any, finished: Path, tmp_path: Path) -> None:
    arch = json.dumps({"embed_dim": 48, "depth": 3, "num_heads": [2, 3, 4], "mlp_ratio": [2, 3, 4]})
    json_output(capsys, "extract", finished / "supernet", "--to", tmp_path, "--arch", arch)
    supernet, model = nasformer.load_supernet(finished / "supernet"), load_model(tmp_path)
    tiny.assert_same(model, supernet.extract(supernet.space.arch(arch)))
    expected = json_output(capsys, "evaluate", tmp_path)
    assert set(expected) == {"accuracy", "top5", "balanced_accuracy", "macro_f1", "images", "worst"}
    assert json_output(capsys, "evaluate", finished, "--arch", arch) == expected
    file = ["--space", "autoformer-micro", "--patch-size", "4", "--img-size", "8", "--in-chans", "1"]
    weights = finished / "supernet" / "supernet.safetensors"
    json_output(capsys, "extract", weights, "--to", tmp_path / "again", "--arch", arch, *file)
    tiny.assert_same(load_model(tmp_path / "again"), model)


def test_a_run_prints_its_result(capsys: Any, finished: Path) -> None:
    text = output(capsys, *words("run", finished))
    assert [name for name in ("winner", "random", "smallest", "largest", "report.html") if name not in text] == []


def test_progress_never_mixes_with_the_result(capsys: Any, run: Path) -> None:
    shutil.rmtree(run / "search")
    capsys.readouterr()
    assert main([*words("search", run), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    warning, progress = err.splitlines()[:2]
    assert warning.startswith("warning: with 288 held-out images, nets that differ by less than")
    assert progress.startswith("search: 8/8")


def test_the_recipes_are_what_the_commands_take() -> None:
    recipes = sorted(recipe_folder().glob("*.yaml"))
    assert recipes
    for path in recipes:
        options = parse(command_for(path), "--config", path)
        assert options.space is None or options.space.startswith(("autoformer-", "esformer-", "trionet", "s3"))
        assert parse(command_for(path), "--config", path.stem) == options  # by its name, from anywhere


HELP = """
import sys
from nasformer.cli.main import COMMANDS, main
helps = [[name, option] for name in COMMANDS for option in ("--help", "--help-all")]
refused = [["nonsense"], ["run", "--max-params", "6mm"]]
for argv in ([], ["--help"], ["--version"], *refused, ["completion"], ["recipes"], *helps):
    main(argv)
print(sorted({"torch", "timm", "sklearn", "matplotlib"} & sys.modules.keys()), file=sys.stderr)
"""


def test_help_does_not_wait_for_torch() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], env=kill.ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.splitlines()[2:] == ["[]"]  # the first lines are about what is refused
    for name in COMMANDS:
        assert f"usage: nasformer {name} " in done.stdout
    for option in ("--max-params", "--train.augment.mixup", "--search.population", "--json", "--config"):
        assert option in done.stdout
    assert "number of classes" in done.stdout  # what stands below a field is its help
    assert nasformer.__version__ in done.stdout.splitlines()


def test_the_program_itself() -> None:
    command = kill.nasformer("cost", "--space", "autoformer-tiny", "--arch", json.dumps(SMALL), "--json")
    done = subprocess.run(command, env=kill.ENVIRONMENT, capture_output=True, text=True, timeout=kill.PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == TINY.costs(TINY.arch(SMALL))


def test_a_reader_that_has_gone_is_no_error(finished: Path, monkeypatch: Any) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr("builtins.print", gone)
        patch.setattr(sys, "stdout", sys.stdout)  # which is replaced, and must be put back
        assert main(["spaces"]) == 0


def test_what_is_extracted_needs_no_gradient_or_training(finished: Path) -> None:
    model = load_model(finished / "model")
    assert not model.training
    with torch.inference_mode():
        assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_seeds_matter(finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    assert main([*words("train", other), "--seed", "1"]) == 0
    ours, theirs = contents(other), contents(finished)
    for name in ("train/log.jsonl", "supernet/supernet.safetensors"):
        assert ours[name] != theirs[name]
