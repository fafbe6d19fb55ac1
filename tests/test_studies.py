"""Studies: cells run once, stop in time and go on elsewhere; every command of every study is understood, and runs."""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import nasformer
import pages
from nasformer.cli.main import find_command, make_parser
from nasformer.data.options import AugmentOptions
from nasformer.latency.search import with_profile
from nasformer.models import registry
from nasformer.runs.base import command_space
from nasformer.tasks.registry import space_for

STUDY = pages.ROOT / "benchmarks" / "study"
YAML = """
about: Which is better?
seeds: 3
variants: {plain: {add: "0"}, better: {add: "0.1"}}
steps:
  - python FOLDER/step.py {work} {seed} {add}
figures:
  searched: figures.json winner accuracy
  random: figures.json 'random *' accuracy
  tau: figures.json tau
plain: [tau]
optional: [tau]
compare: [[searched, random]]
rival: plain
evidence:
  - {road: supernet, method: "{variant}", data: D, images: 10, img_size: 8, budget: small, minutes: [0],
     figures: [searched, random, [random, searched]], handmade: [one, "{variant}"]}
"""
STEP = """
import json, pathlib, sys, time
folder, seed, add = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
calls = folder / "calls"
calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
if (folder.parents[2] / "slow").exists():
    time.sleep(60)
if (folder.parents[2] / "broken").exists() and seed == 1:
    sys.exit("no")
rivals = {f"random {index}": {"accuracy": 0.5 + 0.1 * index} for index in (1, 2)}
found = {"winner": {"accuracy": 0.7 + 0.01 * seed + add * (1 + seed)}, **rivals}
(folder / "figures.json").write_text(json.dumps(found))
"""


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDY.parent))
    monkeypatch.syspath_prepend(str(STUDY))
    module = importlib.import_module("study")
    module.STOPPED.clear()
    monkeypatch.setattr(module.signal, "signal", lambda number, handler: None)
    return module


@pytest.fixture
def toy(study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the toy study with further words; its status."""
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "toy.yaml").write_text(YAML.replace("FOLDER", str(tmp_path)))
    monkeypatch.chdir(tmp_path)

    def run(*words: str, studies: Sequence[str] = ("toy.yaml",)) -> int:
        monkeypatch.setattr(sys, "argv", ["study.py", *studies, "--out", "records", "--jobs", "2", *words])
        return study.main()

    return run


def record() -> dict[str, Any]:
    return json.loads(Path("records/study-toy.json").read_text())["results"]


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_study_runs_each_cell_once_and_compares(executor: str, toy: Any) -> None:
    if executor == "ray":
        pytest.importorskip("ray", reason="needs nasformer[ray]")
    for _ in range(2):  # the second time nothing is done again
        assert toy("--executor", executor, "--ray-address", "local") == 0
    found = record()
    assert found["complete"]
    assert [path.read_text() for path in Path("study/toy").glob("*/*/calls")] == ["x"] * 6
    by_name = {item["name"]: item for item in found["differences"]}
    over_random = by_name["plain: searched - random"]
    assert (over_random["mean"], over_random["std"]) == (pytest.approx(6.0), pytest.approx(1.0))
    assert over_random["p"] == pytest.approx(0.0091, abs=1e-4)
    assert by_name["better - plain: searched"]["mean"] == pytest.approx(20.0)
    assert [line["method"] for line in found["evidence"]] == ["plain", "better"]
    assert {line["handmade"] for line in found["evidence"]} == {"plain", "better"}  # the better of two: searched itself
    text = Path("study/toy/table.md").read_text()
    assert "| searched | 71.0 ± 1.0 | 91.0 ± 11.0 |" in text
    assert "| better - plain: searched | +20.0 ± 10.0 | 3 | 0.074 |" in text
    assert Path("study/toy/figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_study_goes_on_where_nothing_but_the_record_is(toy: Any) -> None:
    toy("--only", "plain")
    assert not record()["complete"]
    toy("--work", "elsewhere")
    assert sorted(path.parent.parent.name for path in Path("elsewhere").rglob("calls")) == ["better"] * 3
    assert len(record()["cells"]) == 6
    Path("toy.yaml").write_text(Path("toy.yaml").read_text().replace('"0.1"', '"0.2"'))
    toy("--work", "third")  # other commands, so these cells are measured anew
    assert sorted(path.parent.parent.name for path in Path("third").rglob("calls")) == ["better"] * 3


def test_a_study_stops_in_time_and_goes_on(toy: Any, study: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "slow").touch()
    assert toy("--minutes", str((study.GRACE + 0.5) / 60)) == 0
    assert not Path("records/study-toy.json").exists()
    (tmp_path / "study" / "slow").unlink()
    assert toy() == 0
    assert record()["complete"]


def test_a_cell_that_was_begun_goes_on_by_the_files_that_are_kept(toy: Any, tmp_path: Path) -> None:
    further = """keep: [figures.json]
steps:
  - python FOLDER/step.py {work} {seed} {add}
  - python FOLDER/check.py {work}"""
    text = YAML.replace("steps:\n  - python FOLDER/step.py {work} {seed} {add}", further)
    Path("toy.yaml").write_text(text.replace("FOLDER", str(tmp_path)))
    Path("check.py").write_text("import sys; open(sys.argv[1] + '/figures.json')")
    assert toy("--steps", "1") == 0
    assert not Path("records/study-toy.json").exists()  # no figures
    begun = Path("records/begun/study-toy.json")
    assert len(json.loads(begun.read_text())) == 6
    toy("--work", "elsewhere", "--seeds", "1")
    assert len(json.loads(begun.read_text())) == 4  # other seeds are kept
    assert toy("--work", "third") == 0
    assert record()["complete"]
    assert not begun.exists()
    assert not [*Path("elsewhere").rglob("calls"), *Path("third").rglob("calls")]  # the first step was not done again


def test_a_cell_that_fails_leaves_the_others(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "broken").touch()
    assert toy() == 1
    assert sorted(record()["cells"]) == [
        f"{variant}, seed {seed}" for variant in ("better", "plain") for seed in (0, 2)
    ]


def test_a_killed_study_loses_no_cell_and_leaves_nothing_running(toy: Any, tmp_path: Path) -> None:
    slow = tmp_path / "study" / "slow"
    slow.parent.mkdir()
    words = [
        sys.executable,
        STUDY / "study.py",
        "toy.yaml",
        "--jobs",
        "2",
        "--out",
        "records",
        "--archive",
        "all.tar.gz",
    ]
    toy("--only", "plain")
    slow.touch()
    killed = subprocess.Popen(words, cwd=tmp_path)
    folders = [tmp_path / "study" / "toy" / "better" / str(seed) for seed in (0, 1)]
    wait_until(lambda: all((folder / "process").exists() and (folder / "calls").exists() for folder in folders))
    killed.kill()
    killed.wait()
    left = [int((folder / "process").read_text()) for folder in folders]
    assert all(map(is_running, left))
    slow.unlink()
    assert subprocess.run(words, cwd=tmp_path).returncode == 0
    assert not any(map(is_running, left))
    assert record()["complete"]
    assert {path.read_text() for path in Path("study/toy/plain").glob("*/calls")} == {"x"}  # not done again
    assert [(folder / "calls").read_text() for folder in folders] == ["xx", "xx"]
    with tarfile.open("all.tar.gz") as archive:
        assert {"study-toy.json", "logs/toy/better/0/log.txt"} < set(archive.getnames())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(happened: Callable[[], bool]) -> None:
    last = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < last
        time.sleep(0.1)


def test_a_queue_runs_slices_in_order_and_leaves_out_what_has_no_images(toy: Any, tmp_path: Path, capsys: Any) -> None:
    text = (tmp_path / "toy.yaml").read_text().replace("{add}", "{add} {data}")
    (tmp_path / "other.yaml").write_text(text.replace("about:", "data: absent.npz\nabout:"))
    (tmp_path / "queue.yaml").write_text(
        "slices:\n- {study: other.yaml}\n- {study: toy.yaml, only: [better]}\n- {study: toy.yaml}\n"
    )
    words = ["--queue", "queue.yaml", "--out", "records", "--jobs", "1"]
    assert toy(*words, studies=()) == 0
    assert record()["complete"]
    assert not Path("records/study-other.json").exists()
    said = capsys.readouterr().out
    assert "without absent.npz, 6 of 12 cells wait" in said
    cells = [line.split(":")[0] for line in said.splitlines() if " s for python" in line]
    assert cells == [f"{variant}, seed {seed}" for variant in ("better", "plain") for seed in range(3)]
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "absent.npz").touch()
    assert toy(*words, studies=()) == 0
    assert json.loads(Path("records/study-other.json").read_text())["results"]["complete"]


def test_cells_take_turns_by_the_processes_they_need(study: ModuleType) -> None:
    now, most, order = [0], [0], []

    @dataclass
    class Counted:
        name: int
        processes: int

        def run(self) -> None:
            order.append(self.name)
            now[0] += self.processes
            most[0] = max(most[0], now[0])
            time.sleep(0.02)
            now[0] -= self.processes

    cells = [Counted(number, processes) for number, processes in enumerate((2, 1, 3, 1, 1, 1))]
    assert len(list(study.run_here(cells, 3, lambda: None))) == 6
    assert most == [3]
    assert order == sorted(order)


def test_a_session_starts_where_nothing_was_carried_or_begun(tmp_path: Path) -> None:
    shutil.copytree(STUDY.parent, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("records", "__pycache__"))
    (tmp_path / "src").mkdir()
    environment = {**os.environ, "LENT": str(tmp_path / "lent"), "OUT": str(tmp_path / "out")}
    words = ["bash", str(tmp_path / "benchmarks" / "session.sh")]
    for _ in range(2):
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "all studies have ended" in done.stdout


ALL = sorted(STUDY.glob("*.yaml"))
QUEUE = STUDY.parent / "queue.yaml"


def test_the_queue_ends_with_every_study_of_a_gpu(study: ModuleType) -> None:
    slices = study.read_queue(QUEUE)
    studies = {Path(part.study): study.read_study(Path(part.study)) for part in slices}
    assert all(set(part.only) <= studies[Path(part.study)].variants.keys() for part in slices)
    assert studies.keys() == {path for path in ALL if study.read_study(path).gpu_minutes}
    whole = {Path(part.study) for part in slices if not part.only}
    assert whole == studies.keys()


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_commands_of_a_study_are_understood(path: Path, study: ModuleType, tmp_path: Path) -> None:
    folders = {"work": tmp_path, "out": None, "data": tmp_path, "weights": tmp_path}
    args = Namespace(**folders, executor="local", jobs=2, seeds=1, steps=None, smoke=False)
    asked = study.read_study(path)
    for variant in asked.variants:
        words = {"data": asked.data, **asked.words_of(variant)}
        for name in (words["data"], words.get("pretrain", "")):
            if name.endswith("/"):
                (tmp_path / name).mkdir(exist_ok=True)
            elif name.endswith(".npz"):
                (tmp_path / name).touch()
    cells = study.open_study(path, args, float("inf")).cells
    for words in (words for cell in cells for words in cell.commands()):
        check_command(words)
    for cell in cells:
        assert [place.format(**cell.words) for place in asked.figures.values()]
    lines = list(
        study.evidence(asked, {variant: {0: dict.fromkeys(asked.figures, 0.5)} for variant in asked.variants}, {}, "")
    )
    assert len(lines) == len(asked.evidence) * len(asked.variants)


OWN = {
    "rivals.py": ("search", ("--models", "--by", "--random", "--other", "--pure", "--timm", "--seed", "--within")),
    "same_recipe.py": ("retrain", ("--models", "--seed", "--jobs", "--out")),
    "winners.py": ("search", ("--models",)),
}
"""What a script has beside the options of a command, which it passes on."""


def check_command(words: list[str]) -> None:
    """Options of ours are parsed; scripts must exist and have theirs."""
    if words[0] == "nasformer":
        pages.parse(words[1:])
        return
    script = pages.ROOT / words[1]
    command, own = OWN.get(script.name, ("", ()))
    source = script.read_text(encoding="utf-8") + (pages.ROOT / "benchmarks" / "record.py").read_text(encoding="utf-8")
    groups = grouped(words[2:])
    assert all(f'"{name}"' in source for name, _ in groups if not command or name in own), words
    if command:
        rest = [part for name, values in groups if name not in own for part in (name, *values)]
        pages.parse([command, *rest])


def grouped(words: list[str]) -> list[tuple[str, list[str]]]:
    """Options with their values; words before the first option are left out."""
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            groups.append((word, []))
        elif groups:
            groups[-1][1].append(word)
    return groups


@pytest.mark.slow
@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_study_runs_in_small(path: Path, tmp_path: Path) -> None:
    """Every step of every variant; of the pretrained nets one of each."""
    words = [sys.executable, "benchmarks/study/study.py", str(path), "--smoke", "--work", str(tmp_path)]
    only = ["DeiT-Ti on CIFAR-100", "ViT-Ti on Flowers-102"] if path.stem == "pretrained" else []
    words += ["--only", *only] if only else []
    done = subprocess.run(words, cwd=pages.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    results = json.loads((tmp_path / "smoke" / "records" / f"study-{path.stem}.json").read_text())["results"]
    assert set(results["cells"]) == {f"{name}, seed 0" for name in only} if only else results["complete"]


def test_classical_sharing_keeps_choices_apart(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.list_families()  # which register when they are imported: now, not in the copies
    monkeypatch.setattr(registry, "_spaces", dict(registry._spaces))
    monkeypatch.setattr(registry, "_families", dict(registry._families))
    classical = importlib.import_module("classical")
    Choice = nasformer.Choice
    block = classical.EveryChoice(num_heads=Choice(1, 2), mlp_ratio=Choice(1.0, 2.0))
    root = classical.EveryChoice(embed_dim=Choice(8, 16), blocks=nasformer.Repeat(block, depth=Choice(1, 2)))
    options = {"img_size": 8, "patch_size": 4, "num_classes": 3, "head_dim": 4, "super_depth": 2}
    supernet = nasformer.Supernet(nasformer.Space("toy", classical.ClassicalAutoFormer, root, options)).eval()
    layers = {name.split(".attn")[0] for name, _ in supernet.weights.named_parameters() if ".attn." in name}
    assert len(layers) == 2 * 2 * 2 * 2  # layers, widths, heads, ratios
    images = nasformer.load_data("digits").train.images[:2, :1].float().repeat(1, 3, 1, 1)
    arch = supernet.space.sample(seed=1)
    before = supernet(images, arch)
    assert before.equal(supernet.extract(arch)(images))
    others = [weight for name, weight in supernet.weights.named_parameters() if name not in supernet.slices(arch)]
    for weight in others:
        weight.data.zero_()
    assert supernet(images, arch).equal(before)


def test_a_packed_set_is_unpacked(tmp_path: Path, study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    shades = np.arange(6, dtype=np.uint8) * 40
    mosaic = shades.reshape(2, 1, 3, 1, 1).repeat(8, 1).repeat(8, 3).repeat(3, 4).reshape(16, 24, 3)
    buffer = io.BytesIO()
    Image.fromarray(mosaic).save(buffer, "PNG")
    data = np.frombuffer(buffer.getvalue(), np.uint8)
    labels = np.array([0, 1, 0, 1, 0], np.uint8)  # the last tile is empty
    facts: dict[str, Any] = {"tile": np.array([8, 8]), "rows": 2, "cols": 3, "classes": np.array(["a", "b"])}
    for split in ("train", "val", "test"):
        facts |= {f"{split}_data": data, f"{split}_off": np.array([0, len(data)]), f"{split}_y": labels}
    np.savez(tmp_path / "packed.npz", **facts)
    words = [str(tmp_path / "packed.npz"), "--to", str(tmp_path / "sets" / "plain.npz")]
    monkeypatch.setattr(sys, "argv", ["unpack.py", *words])
    importlib.import_module("unpack").main()
    found = nasformer.load_data(str(tmp_path / "sets" / "plain.npz"))
    assert [len(part.labels) for part in (found.train, found.holdout, found.test)] == [5, 5, 5]
    assert found.test.images[:, 0, 0, 0].tolist() == shades[:5].tolist()
    assert found.holdout.labels.tolist() == labels.tolist()


def test_images_that_are_scaled_up_as_they_are_drawn_are_those_scaled_at_once(study: ModuleType) -> None:
    cut = importlib.import_module("pretrained_cut")
    digits = nasformer.load_data("digits")
    batches = cut.ScaledBatches(20, digits, AugmentOptions(crop="none", hflip=0.0, smoothing=0.0), 64)
    x, _ = batches.train(0)
    assert x.shape == (64, 1, 20, 20)
    (whole,) = [images for images, _ in batches.evaluation("train", len(digits.train))]
    assert whole[batches.train_part(0)].equal(x)
    ((judged, labels),) = batches.evaluation("holdout", len(digits.holdout))
    assert judged.shape[-1] == batches.img_size == 20
    assert labels.equal(digits.holdout.labels)


def test_the_latency_profile_of_a_study_fits_its_search(study: ModuleType) -> None:
    asked = study.read_study(STUDY / "segmentation-search.yaml")
    words = f"{asked.words['task']} {asked.words['limit']} --max-latency 250ms --space s3-tiny --out x".split()
    command = make_parser(find_command("run")).parse(words).options
    space = space_for(command_space(command), command).with_options(img_size=command.img_size)
    assert with_profile(space, command, device="cuda")[1]
