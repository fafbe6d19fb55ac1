"""A crowd of bad inputs: each is refused within half a minute, in one line, and nobody else's files change.

Every command runs in a process of its own, in an empty folder; beside it is a yard full of things that are not its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from latency.fake import fake_profile
from nasformer.cli.main import main
from nasformer.utils.files import write_json
from processes import running
from small_run import SETTINGS
from tasks.shapes import write_set

LIMIT = 30.0  # seconds
MICRO = "--space autoformer-micro --patch-size 4"
TRAIN = f"train {MICRO} --device cpu --train.epochs 1 --out OWN/run"
SEARCH = "search --holdout 0.2 --max-params 120K --search.population 4 --search.generations 1 --device cpu"
FREE = "search --space autoformer-micro --proxy params --search.strategy random --search.evaluations 2 --device cpu"
SCORE = "score --space autoformer-micro --arch smallest --proxy dss --probe-size 2 --device cpu"
RANK = "rank --table YARD/table.json --target top1 --proxy params --device cpu"
RETRAIN = "retrain YARD/run --data digits --train.epochs 1 --export false --device cpu"
FINETUNE = "finetune YARD/run --data digits --holdout 0.2 --train.epochs 1 --export false --device cpu"

SEGMENT = (
    "train --task segment --space s3-micro --img-size 32 --patch-size 2 --train.epochs 1 --device cpu --out OWN/run"
)
EVOLVE = f"evolve {MICRO} --train.epochs 1 --evolve.steps 0 --evolve.samples 3 --evolve.top 1 --device cpu"


@dataclass(frozen=True)
class Case:
    """A command line, in words that are split at blanks (~ stands for one), and the exit codes that will do."""

    words: str
    codes: tuple[int, ...] = (2,)


def cases() -> Iterator[Case | str]:
    yield from words_that_are_wrong()
    yield from numbers_that_are_wrong()
    yield from spaces_and_archs()
    yield from budgets()
    yield from devices()
    yield from data()
    yield from configs()
    yield from weights()
    yield from folders_of_others()
    yield from models_and_images()
    yield from runs_and_tables()
    yield from pretrained_nets()
    yield from workers()
    yield from masks()
    yield from shards()
    yield from watching_and_advice()


COMMANDS = "run plan train search evolve retrain finetune extract export evaluate predict doctor compare patterns"
COMMANDS += " attention cost sample profile score rank advise watch pack"


def words_that_are_wrong() -> Iterator[Case | str]:
    yield from ("fly", "--fly", "tarin", "run --wings 2", "run --out", "train --config", "doctor RUN MORE", "rank")
    yield from (f"{command} --wings 2" for command in COMMANDS.split())
    yield from (f"{command} --json --out" for command in ("run", "train", "search", "evolve", "rank", "compare"))
    yield from (f"{command}" for command in COMMANDS.split() if command != "profile")
    yield from ("--import no_such_module spaces", "--import", "--import= spaces", "completion tcsh", "recipes no-such")
    yield from ("proxies no-such", "spaces no-such", "recipes ../../../etc/passwd")


def numbers_that_are_wrong() -> Iterator[Case | str]:
    for option in ("num-classes", "in-chans", "img-size", "patch-size", "workers", "seed", "train-images", "holdout"):
        yield from (f"{TRAIN} --{option} {value}" for value in ("-3", ".nan", ".inf", "1" * 40, "x", "1e999"))
    for option in ("epochs", "batch_size", "lr", "lr_batch", "clip_grad", "warmup_epochs", "weight_decay", "ema"):
        yield from (f"{TRAIN} --train.{option} {value}" for value in ("-1", ".nan", ".inf", "lots"))
    for option in ("mixup", "cutmix", "hflip", "smoothing", "rotate", "erasing"):
        yield from (f"{TRAIN} --train.augment.{option} {value}" for value in ("-1", ".nan", ".inf"))
    for name, value in {"drop_path_rate": "2", "head_dim": "0", "super_depth": "-1", "img_size": "[8,x]"}.items():
        yield f"cost {MICRO} --arch smallest --model.{name} {value}"
    for value in (".nan", ".inf", "-0.1", "1", "text", "{a: 1}", "[[[[1]]]]", "2020-99-99"):
        yield f"cost {MICRO} --arch smallest --model.drop_path_rate {value.replace(' ', '~')}"
    yield from (f"sample {MICRO} -n {value}" for value in ("-5", "0", "x", "1e9"))
    yield from (f"{SCORE} --probe-size {value}" for value in ("0", "-1", "1e12", "10000000"))
    yield from (f"{SCORE} --img-size {value}" for value in ("100000", "16384", "0"))
    yield from (f"{SCORE} --repeats -1", f"{SCORE} --probe-img-size -8", f"{SCORE} --seed -1", f"{SCORE} --seed 1e30")
    yield from (f"{RANK} --resamples -1", f"{RANK} --bands 0", f"{RANK} --bands -2", f"{RANK} --resamples 1e12")
    yield from (f"profile {MICRO} --{option} -1" for option in ("batch-size", "threads", "nets", "rounds", "holdout"))
    yield from (f"profile {MICRO} --batch-size 1000000000", f"profile {MICRO} --seed {10**30}")
    yield from (f"plan {MICRO} --draws -1", f"plan {MICRO} --steps 0", f"plan {MICRO} --draws 1e99")
    for option in ("population", "generations", "parents"):
        yield from (f"{SEARCH} --out YARD/run --search.{option} {value}" for value in ("-1", "0", ".nan"))
    for option in ("steps", "samples", "top", "tau", "sigma", "max_shift", "further_epochs", "max_cardinality"):
        yield from (f"evolve {MICRO} --out OWN/run --evolve.{option} {value}" for value in ("-1", ".nan", ".inf"))


def spaces_and_archs() -> Iterator[Case | str]:
    brackets = ("[", "]", "[]", "[embed_dim]", "[embed_dim=]", "[embed_dim=x]", "[embed_dim=-32]", "[embed_dim=0]")
    brackets += ("[embed_dim=nan]", "[embed_dim=1e400]", "[blocks.depth=100000000]", "[blocks.depth=-1]", "[foo=1]")
    brackets += ("[embed_dim=32,32]", "[embed_dim=64,32]", "[blocks.num_heads=0]", f"[embed_dim={'9' * 5000}]")
    brackets += ("[blocks.depth=2.5]", "[embed_dim=32;embed_dim=48]", f"[{'embed_dim=32;' * 5000}]")
    for text in brackets:
        yield f"spaces autoformer-micro{text}"
        yield f"sample --space autoformer-micro{text}"
    for name in ("pit-micro[depth.stage1=10000000]", "trionet-micro[stage1.blocks.depth=99999]", "s3-micro[x=1]"):
        yield f"spaces {name}"
    yield Case("score --space autoformer-micro[embed_dim=1000000] --arch largest --proxy snip --device cpu")
    archs = ("", "no-preset", "[1,2]", "{", "{}", "null", "7", '{"embed_dim":32}', '{"embed_dim":1e400,"blocks":[]}')
    archs += ('{"embed_dim":32,"blocks":[{}]}', '{"embed_dim":[32],"blocks":7}', "[" * 10_000, '{"a":' * 10_000)
    archs += ('{"embed_dim":NaN,"blocks":[]}', "YARD", "YARD/run/model/model.safetensors", "YARD/file.txt", "OWN/fifo")
    for arch in archs:
        yield f"cost {MICRO} --arch {arch}"
        if arch not in ("", "null"):  # which stand for the winner
            yield f"evaluate YARD/run --device cpu --arch {arch}"


def budgets() -> Iterator[Case | str]:
    for value in ("1e999999", "-5", "0", "nan", "inf", "6Q", "6 M M", "1e-9", "99999999999999999999999", "½M", "６M"):
        yield f"sample {MICRO} --max-params {value.replace(' ', '~')}"
        yield f"{FREE} --max-macs {value.replace(' ', '~')}"
    for value in ("500~Mb", "500mb5", "0MB", "-1MB", "1e9MB", "inf", "MB"):
        yield f"sample {MICRO} --max-memory {value}"
    yield from (f"sample {MICRO} --max-latency {value}" for value in ("5", "5min", "-5ms", "nanms", "0ms", "5ms"))
    yield f"sample {MICRO} --min-params 7M --max-params 6M"


def devices() -> Iterator[Case | str]:
    for device in ("mps", "meta", "cuda", "cuda:99", "cuda:-1", "xpu", "cpu:5", "abacus", "cuda:x", "~"):
        yield f"train {MICRO} --out OWN/run --device {device}"
        yield f"evaluate YARD/model --device {device}"


def data() -> Iterator[Case | str]:
    names = ("", ".", "/", "no/such", "digit", "cifar10", "YARD/file.txt", "YARD/run", "YARD/model", "OWN/fifo")
    names += ("imagenet", "YARD/table.json", "YARD/run/model/model.safetensors", "~", "/dev/zero", "/dev/null", "/proc")
    yield from (f"{TRAIN} --data {name}" for name in names)
    yield from (f"{TRAIN} --data YARD/npz/{name}.npz" for name in NPZ)
    yield from (f"{TRAIN} --data YARD/{folder}" for folder in ("empty", "pipes", "loops", "texts", "one-class"))
    yield from (f"{FREE} --data {name}" for name in ("no/such", "YARD/npz/no-channels.npz", "YARD/empty"))
    yield from (f"{TRAIN} --data YARD/photos --holdout {amount}" for amount in ("6", "11images", f"{10**30}images"))
    yield f"{TRAIN} --data YARD/photos --train-images 100000"


CONFIGS = {
    "aliases": "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(20)),
    "bomb": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)),
    "python": "space: !!python/object/apply:os.system [touch pwned]",
    "python-name": "import: !!python/name:os.system",
    "deep": "model: " + "[" * 50_000,
    "list": "- space\n- autoformer-micro",
    "text": "space",
    "empty": "",
    "number": "7",
    "tabs": "space:\tautoformer-micro\n\ttrain: 3",
    "twice": "space: autoformer-micro\nspace: [",
    "unknown": "spcae: autoformer-micro",
    "train-list": "space: autoformer-micro\ntrain: [1, 2]",
    "train-number": "space: autoformer-micro\ntrain: 7",
    "epochs-text": "space: autoformer-micro\ntrain: {epochs: many}",
    "epochs-null": "space: autoformer-micro\ntrain: {epochs: null}",
    "space-number": "space: 7",
    "space-list": "space: [autoformer-micro]",
    "model-text": "space: autoformer-micro\nmodel: big",
    "model-inside": "space: autoformer-micro\nmodel.a: 1\nmodel.a.b: 2",
    "import-number": "import: 7",
    "import-map": "import: {a: b}",
    "import-missing": "import: no_such_module",
    "nan": "space: autoformer-micro\ntrain: {lr: .nan}",
    "date": "space: 2020-01-01",
    "binary": "\x00\x01\x02",
    "keys": "1: 2\n? [a]\n: b",
}


def configs() -> Iterator[Case | str]:
    yield from (f"train --out OWN/run --device cpu --config YARD/configs/{name}.yaml" for name in CONFIGS)
    yield from (f"plan --device cpu --config YARD/configs/{name}.yaml" for name in ("bomb", "deep", "python"))
    for path in ("no.yaml", "YARD", "YARD/file.txt", "/dev/null", "/dev/zero", "YARD/run/model/model.safetensors"):
        yield f"train --out OWN/run --device cpu --config {path}"


def weights() -> Iterator[Case | str]:
    for name in WEIGHTS:
        yield f"{SEARCH} {MICRO} --out OWN/run --supernet YARD/weights/{name}"
        yield f"{TRAIN} --train.teacher timm:resnet18:YARD/weights/{name}"
        yield f"extract YARD/weights/{name} {MICRO} --arch smallest --to OWN/to"
        yield f"run --from timm:resnet18:YARD/weights/{name} --out OWN/run --device cpu"
    yield from (f"{TRAIN} --train.teacher {name}" for name in ("nobody", "timm:", "timm:no_such_net", "YARD/photos"))


def folders_of_others() -> Iterator[Case | str]:
    """What a command writes goes into an empty folder or its own."""
    others = ("run", "model", "retrained", "free", "evolved", "ranked", "foreign", "file.txt", "photos", "profile.json")
    for other in others:
        if other != "run":
            yield f"{SEARCH} --supernet YARD/run/supernet --out YARD/{other}"
            yield f"train {MICRO} --train.epochs 1 --device cpu --out YARD/{other}"
        yield f"run {MICRO} --train.epochs 1 --seed 5 --export false --device cpu --out YARD/{other}"
        yield f"{FREE} --seed 5 --out YARD/{other}"
        yield f"{RETRAIN} --seed 5 --out YARD/{other}"
        yield f"{FINETUNE} --train.lr 0.5 --out YARD/{other}"
        yield f"{EVOLVE} --seed 5 --out YARD/{other}"
        if other != "model":
            yield f"extract YARD/run --to YARD/{other}"
            yield f"export YARD/run --formats python --to YARD/{other}"
        yield f"compare YARD/run YARD/free --out YARD/{other}"
        yield f"patterns YARD/run YARD/run --out YARD/{other}"
        yield f"evaluate YARD/model --device cpu --out YARD/{other}"
        if other != "ranked":
            yield f"{RANK} --out YARD/{other}"
    for file in ("run/result.json", "run/config.json", "file.txt", "foreign/config.json", "table.json"):
        yield f"profile {MICRO} --device cpu --nets 3 --holdout 1 --rounds 1 --out YARD/{file}"
    yield "attention YARD/model YARD/photo.png --block 1 --device cpu --out YARD/run/config.json"


def models_and_images() -> Iterator[Case | str]:
    for image in ("no.png", "YARD/file.txt", "YARD", "YARD/run/result.json", "OWN/fifo", "/dev/zero", "YARD/cut.png"):
        yield f"predict YARD/model {image} --device cpu"
        yield f"attention YARD/model {image} --block 1 --device cpu"
    yield from (f"predict YARD/model YARD/photo.png --top {value} --device cpu" for value in ("0", "-1", "x"))
    for block in ("0", "99", "x", "1.1", "-1"):
        yield f"attention YARD/model YARD/photo.png --block {block} --device cpu"
    for query in ("9,9", "x", "-1,0", "cls,1", "99999999999999999999,0"):
        yield f"attention YARD/model YARD/photo.png --block 1 --device cpu --query {query}"
    yield "attention YARD/model YARD/photo.png --block 1 --device cpu --out picture.exe"
    for index in ("-1", "100000", "x"):
        yield f"attention YARD/model --data digits --index {index} --block 1 --device cpu"
    for model in ("no/model", "YARD/foreign", "YARD/file.txt", "YARD/photos", "YARD/free", "OWN"):
        yield from (f"evaluate {model} --device cpu", f"predict {model} YARD/photo.png --device cpu")
        yield from (f"export {model} --to OWN/to", f"doctor {model} --device cpu", f"extract {model} --to OWN/to")
    yield from ("export YARD/model --to OWN/to --formats exe", "evaluate YARD/model --split dev --device cpu")


def runs_and_tables() -> Iterator[Case | str]:
    for run in ("no/run", "YARD/foreign", "YARD/file.txt", "YARD/model", "YARD/photos", "YARD/evolved"):
        yield from (f"compare YARD/run {run}", f"patterns YARD/run {run}", f"retrain {run} --data digits --out OWN/new")
        yield f"finetune {run} --data digits --out OWN/new --device cpu"
    for table in ("no.json", "YARD/file.txt", "YARD", "YARD/run/result.json", "YARD/configs/deep.yaml", "/dev/zero"):
        yield f"rank --table {table} --target top1 --device cpu"
    yield from ("rank --table YARD/table.json --target nobody", "rank --table YARD/table.json --target top1 --proxy no")
    for profile in ("no.json", "YARD/file.txt", "YARD/table.json", "YARD", "/dev/zero"):
        yield f"sample {MICRO} --max-latency 5ms --latency-profile {profile}"
    for objective in ("speed", "-accuracy,-", "accuracy,,", "params"):
        yield f"{SEARCH} --out YARD/run --search.objectives={objective}"
    yield from (f"{FREE} --proxy {name}" for name in ("nobody", ",", "dss,nobody"))
    yield from (f"{FREE} --search.strategy {name}" for name in ("nobody", "cyclic", "''"))
    yield from (f"{SEARCH} --out YARD/run --holdout 0.3", f"{SEARCH} --out YARD/run --seed 9")


def pretrained_nets() -> Iterator[Case | str]:
    sources = ("", "nobody", "timm:", "timm:no_such_net", "no/such", "YARD/file.txt", "YARD/photos", "YARD/foreign")
    sources += ("OWN/fifo", "/dev/zero", "YARD/free", "YARD/ranked", "timm:resnet18:no.pth")
    for source in sources:
        yield f"run --from {source} --out OWN/run --device cpu"
        yield f"plan --from {source} --device cpu"
    yield from (f"run --from YARD/model --out OWN/run --front {value}" for value in ("-1", "1000", "x", ".nan", "1.5"))
    for words in ("--front 3", "--no-training", "--importance luck", "--max-macs 50%", "--finish wish"):
        yield f"run {MICRO} --out OWN/run --device cpu {words}"
    for words in ("--finish retrain", "--baseline timm:resnet18", "--importance luck", "--space autoformer-micro"):
        yield f"run --from YARD/model --no-training --out OWN/run --device cpu {words}"
    yield from (f"run --from YARD/model --out OWN/run --max-macs {value}" for value in ("0%", "-5%", "nan%", "%", "x%"))
    yield "run --from YARD/model --no-training --data YARD/photos --out YARD/foreign --device cpu"


def workers() -> Iterator[Case | str]:
    base = f"{FREE} --out OWN/run"
    yield from (f"{base} --executor {value}" for value in ("moon", "''", "7"))
    for option in ("cpus-per-trial", "gpus-per-trial", "max-concurrent-trials", "trial-timeout"):
        yield from (f"{base} --{option} {value}" for value in ("-1", ".nan", ".inf", "many", "1e99"))
    yield from (f"{base} --asynchronous", f"{base} --max-concurrent-trials 0", f"{base} --trial-timeout 0")
    yield f"{base} --executor ray --asynchronous --search.strategy cyclic"
    for value in ("0", "-1", "x", "1e9", ".nan"):
        yield f"{RETRAIN} --out OWN/run --top {value}"


LABELS = ("no.txt", "OWN/fifo", "/dev/zero", "YARD", "YARD/labels/list.json", "YARD/labels/deep.json")
LABELS += ("YARD/labels/lists.json", "YARD/labels/words.json", "YARD/labels/binary.txt", "YARD/labels/one.txt")
LABELS += ("YARD/labels/empty.txt", "YARD/labels/negative.json", "YARD/run/model/model.safetensors")


def masks() -> Iterator[Case | str]:
    yield from (f"{SEGMENT} --data YARD/masks --task {value}" for value in ("fly", "''", "7"))
    for name in ("digits", "no/such", "YARD/photos", "YARD/empty", "YARD/file.txt", "YARD/npz/nan.npz", "/dev/zero"):
        yield f"{SEGMENT} --data {name}"
    yield from (f"{SEGMENT} --data YARD/{name}" for name in BAD_MASKS)
    yield from (f"{SEGMENT} --data YARD/masks --segment.labels {name}" for name in LABELS)
    for option in ("decoder-dim", "scale-min", "scale-max"):
        yield from (f"{SEGMENT} --data YARD/masks --segment.{option} {value}" for value in ("0", "-1", ".nan", ".inf"))
    yield from (f"{SEGMENT} --data YARD/masks --segment.ignore {value}" for value in ("x", "-1", "99999999", "½"))
    yield from (f"{SEGMENT} --data YARD/masks --segment.layout {value}" for value in ("moon", "voc", "ade20k"))
    yield from (f"{SEGMENT} --data YARD/masks --train.{words}" for words in ("sandwich -1", "augment.mixup 0.5"))
    yield "search --task segment --supernet YARD/run/supernet --data YARD/masks --out OWN/run --device cpu"
    yield "finetune YARD/run --task segment --data YARD/photos --out OWN/run --device cpu"


def shards() -> Iterator[Case | str]:
    pack = "pack YARD/photos --to OWN/to"
    for option in ("size", "quality", "shard-images", "max-bad"):
        yield from (f"{pack} --{option} {value}" for value in ("-1", ".nan", ".inf", "x", "1e30"))
    yield from (f"{pack} --size 0", f"{pack} --quality 101", f"{pack} --shard-images 0", f"{pack} --max-bad 2")
    for source in ("no/such", "YARD/file.txt", "YARD/empty", "YARD/texts", "YARD/pipes", "OWN/fifo", "digits", "''"):
        yield f"pack {source} --to OWN/to"
    for other in ("run", "model", "free", "ranked", "foreign", "file.txt", "photos", "profile.json", "npz"):
        yield f"pack YARD/photos --to YARD/{other}"
    yield from ("pack YARD/photos --to YARD/shards --size 4", "pack YARD/one-class --to YARD/shards")
    yield from (f"pack {name} --check" for name in ("no/such", "YARD/photos", "YARD/file.txt", "YARD/run", "''"))
    yield from (f"{TRAIN} --data YARD/{name}" for name in BAD_SHARDS)


def watching_and_advice() -> Iterator[Case | str]:
    for run in ("''", "no/run", "YARD/file.txt", "YARD/foreign", "YARD/model", "YARD/photos", "OWN", "/dev/zero"):
        yield f"watch {run}"
    yield from (f"watch YARD/run --port {value}" for value in ("-1", "65536", "x", ".nan", "1e9"))
    yield from (f"watch YARD/run --seconds {value}" for value in ("-1", "0", "x", ".inf", "1e9"))
    for name in ("''", "no/such", "YARD/file.txt", "YARD/empty", "YARD/npz/no-channels.npz", "OWN/fifo", "/dev/zero"):
        yield f"advise --data {name}"
    for value in ("-5", "nan", "6Q", "1e999999", "½M"):
        yield from (f"advise --data digits --max-params {value}", f"advise --data digits --max-macs {value}")
    yield from (f"advise --data digits --max-latency {value}" for value in ("5", "-5ms", "nanms"))
    yield "advise --data digits --max-latency 5ms --latency-profile YARD/table.json"


NPZ = {
    "not-a-zip": {},
    "no-labels": {"train_images": np.zeros((9, 8, 8), np.uint8)},
    "no-channels": {"images": np.zeros((9, 8, 8, 0), np.uint8)},
    "no-images": {"images": np.zeros((0, 8, 8), np.uint8)},
    "no-pixels": {"images": np.zeros((9, 0, 0), np.uint8)},
    "one-dimension": {"images": np.zeros(9, np.uint8)},
    "five-dimensions": {"images": np.zeros((9, 1, 8, 8, 1), np.uint8)},
    "text": {"images": np.array(["a"] * 9)},
    "objects": {"images": np.array([object()] * 9, dtype=object)},
    "complex": {"images": np.zeros((9, 8, 8), complex)},
    "nan": {"images": np.full((9, 8, 8), np.nan)},
    "labels-below-zero": {"labels": np.array([-1] * 9)},
    "labels-huge": {"labels": np.array([2**40] * 9)},
    "labels-text": {"labels": np.array(["a"] * 9)},
    "labels-fewer": {"labels": np.arange(5)},
    "labels-2d": {"labels": np.zeros((9, 2), int)},
    "labels-floats": {"labels": np.linspace(0, 1, 9)},
    "classes-0d": {"classes": np.array("a")},
    "classes-fewer": {"classes": np.array(["a"])},
    "classes-objects": {"classes": np.array([object()], dtype=object)},
}
BAD_MASKS = ("masks-missing", "masks-coloured", "masks-of-pipes", "masks-cut", "voc-binary", "ade20k-words")
BAD_SHARDS = ("shards-cut", "shards-list", "shards-unfinished", "shards-labels")
WEIGHTS = ("evil.pth", "evil.npz", "cut.safetensors", "empty.pth", "list.pth", "text.pth", "other.safetensors")


class Evil:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


@pytest.fixture(scope="module")
def yard(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, models, images and files that are none of the commands' own."""
    yard = tmp_path_factory.mktemp("crowd") / "yard"
    shutil.copytree(finished, yard / "run", ignore=shutil.ignore_patterns("plots"))
    shutil.copytree(finished / "model", yard / "model")
    fake_profile().save(yard / "profile.json")
    (yard / "file.txt").write_text("somebody's notes\n")
    (yard / "foreign" / "src").mkdir(parents=True)
    write_json(yard / "foreign" / "config.json", {"name": "another program", "version": 3})
    (yard / "foreign" / "README.md").write_text("# Mine\n")
    archs = [json.loads(line)["arch"] for line in (yard / "run/search/journal.jsonl").read_text().splitlines()[1:5]]
    rows = [{"arch": arch, "accuracy": {"top1": number}} for number, arch in enumerate(archs)]
    write_json(yard / "table.json", {"space": "autoformer-micro", "rows": rows})
    make_images(yard)
    make_masks(yard)
    make_shards(yard)
    make_npz(yard / "npz")
    make_weights(yard / "weights")
    (yard / "configs").mkdir()
    for name, text in CONFIGS.items():
        (yard / "configs" / f"{name}.yaml").write_text(text)
    settings = yard / "configs" / "sound.yaml"
    settings.write_text(json.dumps(SETTINGS | {"train": {"epochs": 1}}))
    made = {"retrained": RETRAIN, "free": FREE, "ranked": RANK, "evolved": EVOLVE}
    for name, command in made.items():
        assert main(split(f"{command} --out YARD/{name}", yard, yard)) == 0
    return yard


def make_images(yard: Path) -> None:
    for label in ("cat", "dog"):
        (yard / "photos" / label).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(yard / "photos" / label / f"{number}.png")
    shutil.copy(yard / "photos/cat/1.png", yard / "photo.png")
    (yard / "cut.png").write_bytes((yard / "photo.png").read_bytes()[:40])
    (yard / "empty").mkdir()
    shutil.copytree(yard / "photos" / "cat", yard / "one-class" / "cat")
    for name in ("pipes", "loops", "texts"):
        (yard / name / "cat").mkdir(parents=True)
        (yard / name / "dog").mkdir()
    os.mkfifo(yard / "pipes" / "cat" / "a.png")
    os.mkfifo(yard / "pipes" / "dog" / "a.png")
    (yard / "loops" / "cat" / "more").symlink_to(yard / "loops")
    (yard / "texts" / "cat" / "a.png").write_text("no image")
    (yard / "texts" / "dog" / "a.png").write_text("no image")


def make_masks(yard: Path) -> None:
    """A sound set, and others whose masks or lists cannot be used."""
    write_set(yard / "masks", 4, 2, 2)
    for name in BAD_MASKS[:4]:
        shutil.copytree(yard / "masks", yard / name)
    for mask in (yard / "masks-missing").rglob("masks/*.png"):
        mask.unlink()
    for mask in (yard / "masks-coloured").rglob("masks/*.png"):
        Image.new("RGB", (32, 24)).save(mask)
    for image in (yard / "masks-of-pipes").rglob("*.png"):
        image.unlink()
        os.mkfifo(image)
    for mask in (yard / "masks-cut").rglob("masks/*.png"):
        mask.write_bytes(mask.read_bytes()[:50])
    lists = yard / "voc-binary" / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_bytes(b"\xff\xfe\x00")
    for part in ("images/training", "annotations/training"):
        (yard / "ade20k-words" / part).mkdir(parents=True)
    (yard / "ade20k-words" / "objectInfo150.txt").write_text("Idx\tName\nwall\twall\n")
    texts = {"list.json": "[1]", "deep.json": '{"0":' * 10_000, "lists.json": '{"0": [1], "1": {}}', "one.txt": "sky"}
    texts |= {"words.json": '{"sky": "0", "road": "1"}', "empty.txt": "", "negative.json": '{"-1": "a", "-2": "b"}'}
    for name, text in texts.items():
        (yard / "labels").mkdir(exist_ok=True)
        (yard / "labels" / name).write_text(text)
    (yard / "labels" / "binary.txt").write_bytes(b"\xff\xfe\x00\x80")


def make_shards(yard: Path) -> None:
    """A packed set, and others that are damaged."""
    assert main(["pack", str(yard / "photos"), "--to", str(yard / "shards")]) == 0
    for name in BAD_SHARDS:
        shutil.copytree(yard / "shards", yard / name)
    (tar,) = (yard / "shards-cut").glob("*.tar")
    tar.write_bytes(tar.read_bytes()[:1000])
    (yard / "shards-list" / "shards.json").write_text("[]")
    index = json.loads((yard / "shards" / "shards.json").read_text())
    write_json(yard / "shards-unfinished" / "shards.json", index | {"parts": None})
    write_json(yard / "shards-labels" / "shards.json", index | {"classes": ["cat"]})


def make_npz(folder: Path) -> None:
    folder.mkdir()
    for name, changes in NPZ.items():
        arrays = {"images": np.zeros((9, 8, 8), np.uint8), "labels": np.arange(9) % 3}
        classes = {name: changes[name] for name in ("classes",) if name in changes}
        arrays |= {name: array for name, array in changes.items() if name in arrays}
        splits = {f"{split}_{name}": array for split in ("train", "test") for name, array in arrays.items()}
        given = changes if name in ("not-a-zip", "no-labels") else splits | classes
        np.savez(folder / f"{name}.npz", **given)  # type: ignore[arg-type]
    (folder / "not-a-zip.npz").write_bytes(b"PK\x03\x04 no archive")


def make_weights(folder: Path) -> None:
    folder.mkdir()
    torch.save({"state_dict": Evil()}, folder / "evil.pth")
    np.savez(folder / "evil.npz", weight=np.array([Evil()], dtype=object))
    (folder / "cut.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    (folder / "empty.pth").write_bytes(b"")
    torch.save([1, 2], folder / "list.pth")
    (folder / "text.pth").write_text("no weights")
    from safetensors.torch import save_file

    save_file({"other": torch.zeros(3)}, folder / "other.safetensors")
    (folder / "namespace.pkl").write_bytes(pickle.dumps(argparse.Namespace()))


def split(words: str, yard: Path, own: Path) -> list[str]:
    parts = [part.replace("YARD", str(yard)).replace("OWN", str(own)) for part in words.split(" ")]
    return [part.replace("~", " ").replace("''", "") for part in parts]


def execute(words: list[str], folder: str, output: str) -> None:
    """Runs a command in a folder; what it says goes to a file."""
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    torch.set_num_threads(1)
    sys.exit(main(words))


def state(folder: Path) -> dict[str, str]:
    """Digests of all files, locks left out."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path): hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest() for path in files}


CASES = [case if isinstance(case, Case) else Case(case) for case in cases()]


def test_the_crowd_is_large() -> None:
    assert len({case.words for case in CASES}) >= 300


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.words[:90] for case in CASES])
def test_bad_input_is_refused(case: Case, yard: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    os.mkfifo(own / "fifo")
    before, output, start = state(yard), tmp_path / "said.txt", time.monotonic()
    with running(execute, split(case.words, yard, own), str(own), str(output)) as process:
        process.join(LIMIT)
        assert process.exitcode is not None, f"hangs: {output.read_text()[-500:]}"
    said = output.read_text(errors="replace")
    assert "Traceback" not in said, said[-3000:]
    assert process.exitcode in case.codes, (process.exitcode, said[-500:], time.monotonic() - start)
    assert said.splitlines()[-1].startswith("nasformer: ")
    assert len(said.splitlines()[-1]) < 2000
    assert state(yard) == before
    assert not (own / "pwned").exists()
