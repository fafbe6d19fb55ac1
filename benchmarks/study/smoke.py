"""Studies in small: random images, random weights, and commands that take a few steps."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

import nasformer

FEW = "--train.iterations 2 --train.batch_size 8 --train.warmup_epochs 0"
EVOLUTION = "--search.population 3 --search.generations 1 --search.parents 2"
RUN = f"{FEW} {EVOLUTION} --search.random_references 1 --export false --calibration-images 8"
SETTINGS = (
    '{"batch": 8, "full": {"iterations": 2}, "supernet": {"iterations": 2}, "finish": {"iterations": 2}, '
    '"search": {"population": 3, "generations": 1, "parents": 2}, "img_size": 32}'
)
SHORTER = {
    "nasformer run": RUN,
    "nasformer retrain": f"{FEW} --export false",
    "nasformer finetune": f"{FEW} --export false",
    "nasformer evolve": f"{FEW} --evolve.samples 12 --evolve.top 2 --evolve.further_epochs 1 --evolve.min_samples 1"
    " --evolve.sigma 0",
    "winners.py": f"{EVOLUTION} --calibration-images 8",
    "rivals.py": "--random 3 --calibration-images 8",
    "same_recipe.py": FEW,
    "pretrained_cut.py": f"--random 1 --settings '{SETTINGS}'",
    "segmentation.py": "--epochs 1 --batch-size 4 --img-size 64 --decoder-dim 16 --workers 0",
    "detection.py": "--iterations 1 --batch-size 2 --img-size 64 --decoder-dim 16 --workers 0",
    "vqa.py": "--epochs 1 --batch-size 4 --img-size 64 --decoder-dim 16 --workers 0",
}
"""Options that are added to a command, by its program; the last one counts."""
SEARCHES = {
    "random": "--search.evaluations 2 --probe-size 4",
    "evolution": EVOLUTION,
    "cyclic": "--search.population 3 --search.tournament 2 --search.steps 1 --search.cycles 1",
}
"""The same of a search without training, by its strategy; that of the recipes for ESFormer is cyclic."""
SEGMENT = ("--img-size", "64", "--segment.decoder-dim", "16")
"""Of a run on masks: the heads of a pretrained net are sorted by 1,024 images, however few there are."""
SLOW = ("--max-latency", "60s")
"""Of a command with a limit on latency, which must hold on any machine."""
SIDES = {"cifar100": 32, "tinyimagenet100": 64, "imagenette": 64, "flowers102": 64}


def shortened(words: Sequence[str]) -> list[str]:
    """The command with options that make it take seconds."""
    program = f"nasformer {words[1]}" if words[0] == "nasformer" else Path(words[1]).name
    strategies = [after for word, after in pairwise(words) if word == "--search.strategy"]
    extra = SEARCHES[(strategies or ["cyclic"])[0]] if program == "nasformer search" else SHORTER.get(program, "")
    extra_of = {"--task": SEGMENT, "--max-latency": SLOW}
    if "--latency-profile" in words:  # is of larger images: a run measures its own, others find that
        at = list(words).index("--latency-profile")
        words = [*words[:at], *words[at + 2 :]]
    return [*words, *shlex.split(extra), *(part for name in extra_of if name in words for part in extra_of[name])]


def make_set(path: Path, classes: int = 4) -> None:
    """Writes a set of random images as docs/data.md describes it, of the size that the set of this name has."""
    rng, side = np.random.default_rng(0), SIDES.get(path.stem, 32)
    arrays = {"classes": np.array([f"class {number}" for number in range(classes)])}
    for part, count in {"train": 8, "holdout": 3, "test": 3}.items():
        arrays[f"{part}_images"] = rng.integers(0, 256, (classes * count, side, side, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.repeat(np.arange(classes), count)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def make_folder(root: Path) -> None:
    """Writes a set of other tasks with random images, in the layout that the set of this name has."""
    if root.name == "proxy_tables":
        write_tables(root)
        return
    rng = np.random.default_rng(0)
    write = {"camvid_240": write_masks, "pennfudan_320": write_masks, "coco_mini_320": write_coco}.get(root.name)
    for part in ("train", "val", "test"):
        images = rng.integers(0, 256, (6, 48, 64, 3), dtype=np.uint8)
        masks = rng.integers(0, 3, (6, 6, 8), dtype=np.uint8).repeat(8, 1).repeat(8, 2)
        (write or write_questions)(root, part, images, masks)


def save_images(folder: Path, images: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")


def write_masks(root: Path, part: str, images: np.ndarray, masks: np.ndarray) -> None:
    save_images(root / part / "images", images)
    save_images(root / part / "masks", masks)


def write_coco(root: Path, part: str, images: np.ndarray, masks: np.ndarray) -> None:
    save_images(root / f"{part}2017", images)
    listed = [{"id": n, "file_name": f"{n}.png", "width": 64, "height": 48} for n in range(len(images))]
    corners = [8, 8, 40, 8, 40, 32, 8, 32]
    box = {"category_id": 1, "bbox": [8, 8, 32, 24], "area": 768, "iscrowd": 0, "segmentation": [corners]}
    objects = [{"id": n, "image_id": n, **box} for n in range(len(images))]
    content = {"images": listed, "annotations": objects, "categories": [{"id": 1, "name": "thing"}]}
    (root / "annotations").mkdir(exist_ok=True)
    (root / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(content))


def write_tables(root: Path) -> None:
    """Tables of nets with random accuracies, for 32 px, as `golden_tables.py` reads them."""
    root.mkdir(parents=True)
    for name, space in {"autoformer": "autoformer-tiny", "pit": "pit-tiny"}.items():
        archs = [nasformer.get_space(space).sample(seed=seed) for seed in range(6)]
        rows = [{"arch": arch.to_dict(), "accuracy": {"c_kd": float(n * n % 7)}} for n, arch in enumerate(archs)]
        content = {"space": space, "model": {"img_size": 32, "patch_size": 8}, "rows": rows}
        (root / f"ground_truth_{name}.json").write_text(json.dumps(content))


def write_questions(root: Path, part: str, images: np.ndarray, masks: np.ndarray) -> None:
    save_images(root / part / "images", images)
    asked = [{"question_id": n, "image_id": n, "question": "what is this"} for n in range(len(images))]
    given = [{"question_id": n, "multiple_choice_answer": str(n % 2), "answers": []} for n in range(len(images))]
    content = {"questions": asked, "annotations": given}
    (root / part / "questions.json").write_text(json.dumps(content))


def make_weights(words: Iterable[str]) -> None:
    """Writes random weights of the nets that commands name as timm:NAME:FILE, where there is no such file."""
    found = (re.fullmatch(r"(?:ours:)?timm:(\w+):([^*]+)", word) for word in words)
    for name, file in {match.groups() for match in found if match}:
        import timm
        from safetensors.torch import save_file

        if not Path(file).exists():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            save_file(timm.create_model(name, pretrained=False).state_dict(), file)
