"""What the user can put right is one line on standard error, without a traceback, and exit code 2."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kill
from nasformer.cli.main import main
from nasformer.data.loaders import Batches
from nasformer.utils import files
from small_run import contents, refused, words

TINY = ["--space", "autoformer-tiny"]
ARCH = '{"embed_dim": 192, "blocks": [{"num_heads": 3, "mlp_ratio": 3.5}]}'
OUT = ["--space", "autoformer-micro", "--patch-size", "4", "--out", "OUT"]

BAD_INPUT: dict[str, tuple[list[str], str]] = {
    "unknown command": (["fly"], "unknown command 'fly'; there are: run, plan,"),
    "unknown option": (["run", "--wings", "2"], "nasformer run has no option --wings; see nasformer run --help"),
    "the beginning of an option": (["search", "--search.pop", "9"], "did you mean --search.population?"),
    "two plugins in one": (["spaces", "--import", "mine,yours"], "name one module at a time: --import A --import B"),
    "unknown strategy": (
        ["search", "--space", "autoformer-micro", "--proxy", "dss", "--search.strategy", "mine"],
        "one of your own is known with --import MODULE",
    ),
    "unknown space": (["spaces", "autoformer-tyny"], "unknown space 'autoformer-tyny'; did you mean autoformer-tiny?"),
    "no space": (["sample"], "name a space with --space; there are: autoformer-tiny,"),
    "no value": (["sample", *TINY, "--max-params"], "--max-params needs a value; see nasformer sample --help"),
    "no number": (["sample", *TINY, "--max-params", "lots"], "'lots' is not a quantity; write a number"),
    "below zero": (["sample", *TINY, "--max-params=-5"], "'-5' is not a quantity"),
    "a text for a count": (["sample", *TINY, "-n", "x"], '-n is "x", expected an integer; give another value'),
    "a text for a size": (
        ["cost", *TINY, "--patch-size", "x"],
        '--patch-size is "x", expected an integer or null; give another value',
    ),
    "no choice": (
        ["train", *OUT, "--train.optimizer", "lion"],
        "--train.optimizer is 'lion'; choose one of adamw, sgd",
    ),
    "too small a budget": (["sample", *TINY, "--max-params", "1M"], "no architecture fits params <= 1M"),
    "no window": (["sample", *TINY, "--min-params", "7M", "--max-params", "6M"], "--min-params 7,000,000 is above"),
    "too narrow": (
        ["sample", *TINY, "--min-params", "5900000", "--max-params", "5900001"],
        "found no architecture with",
    ),
    "no arch": (["cost", *TINY], "name an architecture with --arch"),
    "unknown preset": (["cost", *TINY, "--arch", "resnet"], "is neither a JSON file nor inline JSON nor a preset"),
    "arch outside": (["cost", *TINY, "--arch", ARCH], "arch.blocks has 1 items, allowed: 12, 13, 14"),
    "malformed JSON": (["cost", *TINY, "--arch", ARCH[:-3]], "the arch is not valid JSON"),
    "a list for an arch": (["cost", *TINY, "--arch", "[1, 2]"], "is neither a JSON file nor inline JSON"),
    "a long text for an arch": (["cost", *TINY, "--arch", "[1, 2]" * 999], "is neither a JSON file nor inline JSON"),
    "columns that are numbers": (["cost", *TINY, "--arch", '{"num_heads": 3, "mlp_ratio": 4}'], "must be lists"),
    "no patch": (
        ["cost", *TINY, "--arch", "autoformer-t", "--patch-size", "0"],
        "patch_size is 0; give a number from 1 to 16384",
    ),
    "unknown model option": (["cost", *TINY, "--model.wings", "2"], "has no model option 'wings'"),
    "no --out": (["train", "--space", "autoformer-micro"], "say where the run's folder shall be: --out runs/NAME"),
    "a misspelt option of all commands": (["run", *OUT, "--confg", "digits"], "did you mean --config?"),
    "no config": (
        ["run", *OUT, "--config", "no.yaml"],
        "there is no config file no.yaml; `nasformer recipes` lists those that come with",
    ),
    "a recipe without sense": (["train", *OUT, "--train.epochs", "0"], "epochs is 0; give 1 or more"),
    "an augmentation without sense": (["train", *OUT, "--train.augment.hflip", "2"], "hflip is 2; give a number"),
    "no data file": (["train", *OUT, "--data", "no/file.npz"], "no file or folder no/file.npz; check the path"),
    "unknown data": (
        ["train", *OUT, "--data", "digit"],
        "digits, fgvc_aircraft, flowers102, oxford_pets, stanford_cars; did you mean 'digits'?",
    ),
    "other classes": (["train", *OUT, "--num-classes", "3"], "digits has num_classes 10, not 3"),
    "patches that do not fit": (["train", *OUT, "--patch-size", "3"], "img_size 8 is not a multiple of patch_size 3"),
    "no such device": (["train", *OUT, "--device", "abacus"], "unknown device 'abacus'; use auto, cpu, cuda or cuda:N"),
    "a device that does not train": (["train", *OUT, "--device", "meta"], "device"),
    "a device that is not here": (["train", *OUT, "--device", "mps"], "device"),
    "a billion blocks": (["spaces", "autoformer-micro[blocks.depth=100000000]"], "blocks.depth"),
    "a million patches": (
        ["cost", *TINY, "--arch", "autoformer-t", "--img-size", "16384"],
        "1,048,576 patches of 16 px",
    ),
    "a long name": (["spaces", "x" * 9999], " … "),
    "no module": (["--import"], "--import needs the name of a module"),
    "a huge hold-out": (["train", *OUT, "--holdout", "1" * 40], "cannot hold out"),
    "too many workers": (
        ["train", *OUT, "--workers", "1000000"],
        "workers is 1000000; give a whole number from 0 to 1024",
    ),
    "a deep arch": (["cost", *TINY, "--arch", '{"a":' * 100_000], "the arch is not valid JSON"),
    "a table without end": (["rank", "--table", "/dev/zero", "--target", "top1"], "more than the 512 MB that are read"),
    "no teacher": (["train", *OUT, "--train.teacher", "nobody"], "no model folder at nobody"),
    "no supernet": (["search", *OUT], "supernet; train one first"),
    "a supernet that is not there": (["search", *OUT, "--supernet", "none.pth"], "no supernet at none.pth"),
    "nothing to extract from": (
        ["extract"],
        "say what to extract from and where to: nasformer extract",
    ),
    "nobody to look at": (["doctor"], "say which run: nasformer doctor RUN"),
    "a patient that is not there": (["doctor", "no/run"], "config.json is missing; is no/run a folder that"),
    "a run that is not there": (["extract", "no/run", "--to", "OUT"], "no supernet at no/run"),
    "nothing to evaluate": (["evaluate"], "say which model: nasformer evaluate FOLDER --data DATA"),
    "a model that is not there": (["evaluate", "no/model"], "no model folder at no/model"),
    "a name of two lines": (["evaluate", "no\nmodel"], "no model folder at no model"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(capsys: Any, tmp_path: Path, case: str) -> None:
    argv, message = BAD_INPUT[case]
    out = tmp_path / "out"
    assert message in refused(capsys, [str(out) if word == "OUT" else word for word in argv])
    assert not [path for path in out.rglob("*") if path.name not in ("config.json", ".lock")]  # no work was done


def test_files_that_are_not_what_they_should_be(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 this is no archive")
    (tmp_path / "bad.yaml").write_text("space: [autoformer\n- what:")
    (tmp_path / "odd.yaml").write_text("spcae: autoformer-micro")
    nested = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    (tmp_path / "bomb.yaml").write_text(f"a0: &a0 [x]\n{nested}")
    (tmp_path / "arch.json").write_bytes(b"\xff\xfe\x00")
    out = ["--space", "autoformer-micro", "--out", str(tmp_path / "out")]
    assert "bad.npz (File is not a zip file)" in refused(capsys, ["train", *out, "--data", str(tmp_path / "bad.npz")])
    assert "bad.yaml is not valid YAML (while parsing a flow sequence" in refused(
        capsys, ["train", *out, "--config", str(tmp_path / "bad.yaml")]
    )
    argv = ["train", *out, "--config", str(tmp_path / "bomb.yaml")]
    assert "line 2 has an alias (*a0); write the value out" in refused(capsys, argv)
    assert "odd.yaml has the option spcae, which no command has; did you mean space?" in refused(
        capsys, ["train", *out, "--config", str(tmp_path / "odd.yaml")]
    )
    assert "not valid JSON" in refused(capsys, ["cost", *TINY, "--arch", str(tmp_path / "arch.json")])


def test_only_what_a_run_has_is_left_out_of_a_file(capsys: Any, tmp_path: Path) -> None:
    """Typing errors beside it are still refused, and so are these options on the command line."""
    path, out = tmp_path / "run.yaml", ["--out", str(tmp_path / "out")]
    path.write_text("space: autoformer-micro\nmax_params: 1M\nsearch: {population: 3}\nserach: {population: 3}")
    assert "has the option serach, which no command has; did you mean search?" in refused(
        capsys, ["train", *out, "--config", str(path)]
    )
    path.write_text("space: autoformer-micro\nsearch: {population: 3}\ntrain: {epchs: 3}")
    message = "has the option train.epchs, which nasformer train does not have; did you mean train.epochs?"
    assert message in refused(capsys, ["train", *out, "--config", str(path)])
    path.write_text("space: autoformer-micro\nsearch: {population: 3}")
    argv = ["train", *out, "--config", str(path), "--max-params", "1M"]
    assert "nasformer train has no option --max-params" in refused(capsys, argv)


def test_an_npz_without_labels(capsys: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", train_images=np.zeros((9, 8, 8), np.uint8))
    argv = [
        "train",
        "--space",
        "autoformer-micro",
        "--out",
        str(tmp_path / "out"),
        "--data",
        str(tmp_path / "data.npz"),
    ]
    assert "lacks train_labels, test_images, test_labels" in refused(capsys, argv)


SEARCH = ["--holdout", "0.2", "--max-params", "120K", "--search.population", "4", "--search.generations", "2"]
DAMAGES: dict[str, tuple[str, bytes | None, str, str]] = {
    "supernet folder without files": ("supernet/*", None, "search", "supernet.json is missing; is"),
    "supernet without weights": ("supernet/*.safetensors", None, "search", "no checkpoint at"),
    "supernet cut": ("supernet/*.safetensors", b"\x00\x01", "search", "cannot be read as weights"),
    "supernet of nothing": (
        "supernet/*.json",
        b"{}",
        "search",
        "supernet.json: space is missing, expected a string; restore it",
    ),
    "config of nothing": ("config.json", b"[]", "search", "config.json is damaged"),
    "journal of another kind": ("search/journal.jsonl", b"what?\n", "search", "is not a search journal"),
    "log": ("train/log.jsonl", b"what?\n", "train", "log.jsonl is damaged"),
    "checkpoint": ("train/checkpoints/*/optimizer.safetensors", b"\x00", "train", "optimizer.safetensors is damaged"),
    "checkpoint without settings": ("train/checkpoints/*/settings.json", None, "train", "settings.json is missing"),
    "no winner": ("result.json", b"{}", "extract", "result.json: space is missing, expected a string"),
    "no result": ("result.json", None, "extract", "has no search result yet; search it first"),
    "model without weights": ("model/*.safetensors", None, "evaluate", "no checkpoint at"),
    "model of nothing": (
        "model/config.json",
        b'{"family": "autoformer"}',
        "evaluate",
        "config.json: arch is missing, expected an object; ",
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_run_folder(capsys: Any, run: Path, tmp_path: Path, case: str) -> None:
    pattern, content, command, message = DAMAGES[case]
    for path in list(run.glob(pattern)):
        path.unlink() if content is None else path.write_bytes(content)
    argv = {
        "train": words("train", run),
        "search": ["search", "--out", str(run), *SEARCH],
        "extract": ["extract", str(run), "--to", str(tmp_path / "to")],
        "evaluate": ["evaluate", str(run / "model")],
    }[command]
    assert message in refused(capsys, argv)


def test_a_checkpoint_of_another_space(capsys: Any, run: Path) -> None:
    message = refused(capsys, words("train", run, space="autoformer-tiny"))
    assert "was trained with space = autoformer-micro, not autoformer-tiny; go on with the old setting" in message


def test_an_arch_too_large_for_the_supernet(capsys: Any, finished: Path, tmp_path: Path) -> None:
    for command in (["extract", str(finished), "--to", str(tmp_path)], ["evaluate", str(finished)]):
        message = refused(capsys, [*command, "--arch", "autoformer-t"])
        assert "the arch does not fit into a supernet of autoformer-micro" in message


def test_a_run_folder_in_use(capsys: Any, run: Path) -> None:
    draft = run / "train" / ".log.jsonl.999999999.tmp"  # of a process that is no more
    draft.write_text("")
    with kill.holding(run / ".lock"):
        for command in ("train", "search", "run"):
            message = refused(capsys, words(command, run))
            assert f"{run} is in use by another process; wait for it or use another --out" in message
    assert draft.exists()  # only who holds the lock may clear up
    assert main(words("run", run)) == 0
    assert not draft.exists()


def test_a_path_that_cannot_be(capsys: Any, tmp_path: Path, finished: Path) -> None:
    (tmp_path / "file").write_text("")
    train, extract = ["train", "--space", "autoformer-micro", "--out"], ["extract", str(finished), "--to"]
    for out in (tmp_path / "file" / "run", tmp_path / ("n" * 300)):
        assert "cannot write or read" in refused(capsys, [*train, str(out)])
        assert "cannot write or read" in refused(capsys, [*extract, str(out)])
    file = tmp_path / "file"
    assert f"{file} is a file; name a folder with --out" in refused(capsys, [*train, str(file)])
    assert f"{file} is a file; name a folder with --to" in refused(capsys, [*extract, str(file)])


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder in which this process may not write, even if it is root's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(user)
        shutil.rmtree(folder)


def test_a_folder_that_is_read_only(capsys: Any, read_only: Path) -> None:
    argv = ["train", "--space", "autoformer-micro", "--patch-size", "4", "--out", str(read_only / "run")]
    message = refused(capsys, argv)
    assert f"cannot write or read {read_only}" in message
    assert "Permission denied; choose another path" in message


def interrupted(capsys: Any, argv: list[str]) -> tuple[int, str]:
    """Exit code and last words of a command that is stopped under way; progress may come before them."""
    capsys.readouterr()
    code = main(argv)
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return code, err.splitlines()[-1]


def assert_ends_as(run: Path, finished: Path) -> None:
    ours, theirs = contents(run), contents(finished)
    assert [name for name in theirs if ours.get(name) != theirs[name]] == []


@pytest.mark.parametrize("writes", [pytest.param(2, marks=pytest.mark.slow), 7])
def test_a_full_disk(capsys: Any, monkeypatch: Any, tmp_path: Path, finished: Path, writes: int) -> None:
    """After so many writes: in the first checkpoint, and between the stages."""
    run, real, done = tmp_path / "run", files.write_bytes, 0

    def write(path: Path, content: bytes) -> None:
        nonlocal done
        done += 1
        if done > writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", write)
        code, message = interrupted(capsys, words("run", run))
    assert code == 2
    assert message.startswith("nasformer: the disk is full (while writing); free some space, then run the same command")
    assert main(words("run", run)) == 0
    assert_ends_as(run, finished)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, which only root can have."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "nasformer-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root's rights")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full(capsys: Any, small_disk: Path, finished: Path) -> None:
    code, message = interrupted(capsys, words("run", small_disk / "run"))
    assert code == 2
    assert message.startswith("nasformer: the disk is full")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert main(words("run", small_disk / "run")) == 0
    assert_ends_as(small_disk / "run", finished)


@pytest.mark.parametrize("moment", ["train", pytest.param("evaluation", marks=pytest.mark.slow)])
def test_control_c_and_going_on(capsys: Any, monkeypatch: Any, tmp_path: Path, finished: Path, moment: str) -> None:
    run, real, count = tmp_path / "run", getattr(Batches, moment), 0

    def stopped(self: Batches, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Batches, moment, stopped)
        code, message = interrupted(capsys, words("run", run))
    assert (code, message) == (130, "nasformer: stopped; the same command goes on from here")
    assert main(words("run", run)) == 0
    assert_ends_as(run, finished)


def test_a_defect_of_ours_is_not_hidden(monkeypatch: Any, tmp_path: Path) -> None:
    def defect(*_: Any) -> None:
        raise ValueError("ours")

    monkeypatch.setattr("nasformer.train.loop.Trainer.step", defect)
    with pytest.raises(ValueError, match="ours"):
        main(words("train", tmp_path / "run"))
