"""Valid JSON of a wrong shape in any file that commands read: exit code 2, one line, and nothing is written."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

from latency.fake import fake_profile
from nasformer.cli.main import main
from nasformer.utils.files import read_json, write_json
from report.fake_evolution import write_evolution
from small_run import SETTINGS, contents

SEARCH = "search --out RUN --holdout 0.2 --max-params 120K --search.population 4 --search.generations 2 --device cpu"
TRAIN = "train --config ROOT/run.yaml --out RUN --device cpu"
RETRAIN = "retrain RUN --data digits --out ROOT/new --train.epochs 1 --export false --device cpu"
FINETUNE = "finetune RUN --data digits --out ROOT/new --holdout 0.2 --train.epochs 1 --export false --device cpu"
EXTRACT, EXPORT = "extract RUN --to ROOT/to", "export RUN --to ROOT/to --formats python"
EVALUATE, INHERITED = "evaluate RUN/model --device cpu", "evaluate RUN --holdout 0.2 --arch smallest --device cpu"
PREDICT = "predict RUN ROOT/image.png --device cpu"
ATTENTION = "attention RUN ROOT/image.png --block 1 --out ROOT/a.png --device cpu"
DOCTOR, COMPARE, PATTERNS = "doctor RUN --device cpu", "compare RUN ROOT/free", "patterns RUN RUN"
SAMPLE = "sample --space autoformer-micro --img-size 8 --patch-size 4 --in-chans 1 --latency-profile ROOT/profile.json"
FREE = "search --space autoformer-micro --proxy params --out ROOT/free --probe-size 4 --device cpu"
FREE += " --search.strategy random --search.evaluations 3"
RANK = "rank --table ROOT/table.json --target top1 --proxy params --out ROOT/ranked --probe-size 4 --device cpu"
RANK_RUN = "rank --table RUN --target accuracy --proxy params --device cpu"
PACK, CHECK = "pack ROOT/photos --to ROOT/shards", "pack ROOT/shards --check"
TRAIN_PACKED = "train --space autoformer-micro --data ROOT/shards --patch-size 4 --out ROOT/new --device cpu"
EVOLVE = "evolve --config ROOT/evolve.yaml --out ROOT/evolved --device cpu"


@dataclass(frozen=True)
class Damage:
    """A file that commands read.

    Args:
        fields: Those that have a type which every command must insist on; dots lead inwards, numbers into lists. Null
            is no damage in many of them: it stands for what is not known.
        line: Of a JSONL file, which line.
    """

    file: str
    commands: tuple[str, ...]
    fields: str
    line: int | None = None


CANDIDATE = "id generation origin parents arch params"
FILES = {
    "run config": Damage(
        "run/config.json",
        (TRAIN, SEARCH, RETRAIN, DOCTOR, COMPARE, EXPORT),
        "space patch_size model data holdout seed kind train train.epochs train.augment train.augment.hflip search "
        "budget versions device calibration_images",
    ),
    "supernet config": Damage(
        "run/supernet/supernet.json",
        (SEARCH, EXTRACT, INHERITED, DOCTOR, FINETUNE),
        "space options options.img_size options.drop_path_rate trained_on mean mean.0 std classes classes.3",
    ),
    "model config": Damage(
        "run/model/config.json",
        (EVALUATE, PREDICT, ATTENTION, EXPORT),
        "family arch arch.embed_dim arch.blocks arch.blocks.0 arch.blocks.0.num_heads options options.num_classes "
        "options.qkv_bias options.head_dim mean std std.0 classes",
    ),
    "result": Damage(
        "run/result.json",
        (EXTRACT, RETRAIN, COMPARE, PATTERNS, EXPORT),
        "space winner winner.arch winner.params references references.0 health front budget",
    ),
    "journal": Damage("run/search/journal.jsonl", (COMPARE, SEARCH, PATTERNS, RANK_RUN), "journal settings", line=0),
    "candidate": Damage("run/search/journal.jsonl", (COMPARE, SEARCH, RANK_RUN), f"{CANDIDATE} accuracy", line=2),
    "random search": Damage("run/search/random.jsonl", (COMPARE,), f"{CANDIDATE} accuracy", line=2),
    "workers": Damage("run/search/workers.jsonl", (COMPARE,), "event", line=0),
    "threads": Damage("run/train/threads.json", (SEARCH,), "threads"),
    "log": Damage("run/train/log.jsonl", (DOCTOR, COMPARE, TRAIN), "step epoch loss lr", line=1),
    "log of a baseline": Damage("run/baselines/timm-tiny/log.jsonl", (COMPARE,), "step loss", line=0),
    "checkpoint": Damage("run/train/checkpoints/step-16/settings.json", (TRAIN,), "space model_options checksums"),
    "diagnosis": Damage("run/health.json", (COMPARE,), "step images subnets correlations taus looks alarms"),
    "profile": Damage(
        "profile.json",
        (SAMPLE,),
        "profile space options setup setup.pace_ms setup.threads machine table laws overhead_ms scale image_bytes "
        "holdout holdout.median_error",
    ),
    "config without training": Damage("free/config.json", (FREE, COMPARE), "space seed kind budget"),
    "journal without training": Damage("free/search/journal.jsonl", (FREE, COMPARE), CANDIDATE, line=2),
    "table": Damage("table.json", (RANK,), "space model rows rows.0 rows.0.arch rows.0.accuracy note"),
    "scores": Damage("ranked/scores/params.jsonl", (RANK,), "values values.0 seconds", line=1),
    "evolution": Damage(
        "evolved/evolution.json",
        (EVOLVE,),
        "steps steps.0 steps.0.space steps.0.cardinality steps.0.error steps.0.error.top steps.0.errors "
        "steps.0.dimensions budget options options.steps",
    ),
    "packed set": Damage(
        "shards/shards.json",
        (TRAIN_PACKED, CHECK, PACK),
        "settings settings.size settings.listing classes classes.0 parts parts.train parts.train.0 parts.train.0.file "
        "parts.train.0.images parts.train.0.bytes parts.train.0.sha256",
    ),
    "shard": Damage(
        "shards/train-000000.json",
        (TRAIN_PACKED, PACK),
        "shard shard.file shard.images shard.bytes numbers numbers.0 labels labels.0 offsets offsets.0 sizes sizes.0",
    ),
    "recipe": Damage(
        "run.yaml", (TRAIN,), "space patch_size model train train.epochs train.lr train.augment train.augment.hflip"
    ),
}


@pytest.fixture(scope="module")
def root(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that commands read."""
    root = tmp_path_factory.mktemp("damaged")
    run = shutil.copytree(finished, root / "run", ignore=shutil.ignore_patterns("report.html"))
    shutil.copy(run / "search" / "journal.jsonl", run / "search" / "random.jsonl")
    (run / "baselines" / "timm-tiny").mkdir(parents=True)
    shutil.copy(run / "train" / "log.jsonl", run / "baselines" / "timm-tiny" / "log.jsonl")
    step = {"step": 16, "images": "held-out images", "subnets": [], "correlations": {}, "taus": [], "looks": []}
    write_json(run / "health.json", {**step, "alarms": []})
    (run / "search" / "workers.jsonl").write_text('{"event": "worker lost"}\n')
    fake_profile().save(root / "profile.json")
    write_json(root / "run.yaml", SETTINGS)
    write_json(root / "evolve.yaml", SETTINGS | {"train": {"epochs": 1}, "max_params": None})
    write_evolution(root / "evolved")
    arch = read_json(run / "result.json")["winner"]["arch"]
    rows = [{"arch": arch, "accuracy": {"top1": accuracy}} for accuracy in (1.0, 2.0, 3.0)]
    write_json(root / "table.json", {"space": "autoformer-micro", "model": {}, "rows": rows, "note": "made up"})
    Image.new("RGB", (8, 8)).save(root / "image.png")
    for number in range(12):
        folder = root / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(folder / f"{number}.png")
    for command in (FREE, RANK, PACK):
        assert main(words(command, root)) == 0
    return root


def words(command: str, root: Path) -> list[str]:
    return command.replace("RUN", f"{root}/run").replace("ROOT", str(root)).split()


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def kind_of(value: Any) -> str:
    """The type of a JSON value; one number stands for another."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


@st.composite
def wrong_shapes(draw: st.DrawFn) -> tuple[str, str, str | None, Any]:
    """Some file, a command that reads it, a field (None: the whole), and what is put there."""
    name = draw(st.sampled_from(list(FILES)))
    damage = FILES[name]
    return (
        name,
        draw(st.sampled_from(damage.commands)),
        draw(st.sampled_from([None, *damage.fields.split()])),
        draw(JSON),
    )


def read(path: Path, line: int | None) -> Any:
    return json.loads(path.read_text() if line is None else path.read_text().splitlines()[line])


def write(path: Path, line: int | None, content: Any) -> None:
    lines = path.read_text().splitlines()
    start = line or 0
    lines[start : start + 1 if line is not None else len(lines)] = [json.dumps(content)]
    path.write_text("".join(f"{text}\n" for text in lines))


def replaced(content: Any, field: str, value: Any) -> tuple[Any, Any]:
    """The content with another value for a field, and the value that it had."""
    content = json.loads(json.dumps(content))
    *outer, last = (int(key) if key.isdigit() else key for key in field.split("."))
    inside = content
    for key in outer:
        inside = inside[key]
    before, inside[last] = inside[last], value
    return content, before


def answer(capsys: pytest.CaptureFixture[str], argv: list[str]) -> tuple[int, str]:
    """Exit code and what is said on standard error, progress and notes left out."""
    capsys.readouterr()
    return main(argv), capsys.readouterr().err


def check(case: tuple[str, str, str | None, Any], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Puts a value of another type into a file and asks a command that reads it."""
    name, command, field, value = case
    damage = FILES[name]
    path = root / damage.file
    sound = path.read_bytes()
    content = read(path, damage.line)
    damaged, before = (value, content) if field is None else replaced(content, field, value)
    if kind_of(value) == kind_of(before) or value in (None, "") or (field is None and value == {}):
        return
    write(path, damage.line, damaged)
    state = contents(root)
    try:
        code, said = answer(capsys, words(command, root))
        assert code == 2, f"{command} with {field} = {value!r}: {said}"
        assert said.splitlines()[-1].startswith("nasformer: ")
        assert "Traceback" not in said
        after = contents(root)
        assert [file for file, old in state.items() if after.get(file) != old] == []
    finally:
        path.write_bytes(sound)
        shutil.rmtree(root / "to", ignore_errors=True)
        shutil.rmtree(root / "new", ignore_errors=True)


FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(deadline=None, max_examples=30, derandomize=True, suppress_health_check=FIXTURES)
@given(case=wrong_shapes())
def test_json_of_a_wrong_shape_is_refused_in_one_line(
    case: tuple[str, str, str | None, Any], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(case, root, capsys)


@pytest.mark.slow
@settings(deadline=None, max_examples=5000, suppress_health_check=FIXTURES)
@given(case=wrong_shapes())
def test_json_of_many_wrong_shapes(
    case: tuple[str, str, str | None, Any], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(case, root, capsys)


NO_JSON = {"empty": b"", "binary": b"\xff\xfe\x00\x80\n", "deep": b"[" * 100_000 + b"\n", "missing": None}
OPTIONAL = ("health", "random", "baselines", "log", "checkpoint", "journal", "scores", "evolution", "free/config")
OPTIONAL += ("workers", "threads", "shards")
"""Files that need not be there, or not be begun."""


@pytest.mark.parametrize("name", NO_JSON)
def test_files_that_hold_no_json_at_all(name: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a file is missing, a model is exported without its run, the doctor looks at a checkpoint, and runs are
    compared by what they have."""
    content = NO_JSON[name]
    for damage in FILES.values():
        if not content and any(word in damage.file for word in OPTIONAL):
            continue
        path = root / damage.file
        sound = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        try:
            for command in damage.commands:
                if content is not None or command not in (EXPORT, DOCTOR, COMPARE):
                    code, said = answer(capsys, words(command, root))
                    assert (code, said.count("nasformer: "), said.count("\n")) == (2, 1, 1), f"{command}: {said}"
        finally:
            path.write_bytes(sound)
