"""Segmentation by one recipe: backbones of ours beside encoders of timm, all with the same UPerNet head.

    tar xf camvid_240.tar
    python benchmarks/segmentation.py --data camvid_240 --ignore 11,255 --seeds 3 --out record.json \
        --nets s3-tiny:smallest autoformer-tiny:smallest timm:resnet18 timm:resnet50

A net is SPACE:ARCH (from scratch), FILE.json:NAME (one of those that rivals.py wrote, from scratch), FOLDER (a model of
a run, whose backbone is trained on), timm:NAME (from scratch), timm:NAME:FILE (with weights in safetensors; of a
pattern, the last file), or ours:timm:NAME[:FILE] (the same net as a family of ours, so with our maps or pyramid). The
first net of timm is the baseline of all ratios. mIoU is that of the test images at their own size; the weights are
those of the last step, so nothing is chosen on any image.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from nasformer.data.files import BadImages
from nasformer.data.options import AugmentOptions
from nasformer.models.dense import TimmNet, dense_space, head_option_names
from nasformer.models.registry import get_space
from nasformer.models.storage import build_from, facts_in, fresh_model, load_model
from nasformer.supernet.supernet import Supernet
from nasformer.tasks.masks import open_masks
from nasformer.tasks.options import SegmentOptions
from nasformer.tasks.segment import MaskBatches
from nasformer.train.evaluate import evaluate
from nasformer.train.loop import train_model
from nasformer.train.loss import load_timm
from nasformer.train.recipe import Recipe
from nasformer.utils.device import choose_device
from record import add_side_by_side, benchmark_parser, mean_and_spread, run_side_by_side

WARM_UP = 20
"""Steps before those whose time counts, at most: kernels are chosen in them, and what comes often is recorded."""


def build_timm(net: str, task: str, batches: MaskBatches, stride: int = 32, **head: Any) -> nn.Module:
    """A timm model, NAME or NAME:FILE, as the backbone of a task.

    Args:
        batches: Whose images and classes it is for.
        stride: Pixels to a position of the coarsest map; below 32 the last stages have holes in place of strides.
        head: Options of the head.
    """
    name, _, pattern = net.partition(":")
    weights = newest(pattern) if pattern else ""
    given: dict[str, Any] = {"pretrained": True, "pretrained_cfg_overlay": {"file": weights}} if weights else {}
    given |= {"output_stride": stride} if stride < 32 else {}
    return TimmNet(name, task, batches.img_size, batches.in_chans, batches.num_classes, head, given)


def newest(pattern: str) -> str:
    """The last file of a pattern, such as that of the last checkpoint."""
    files = sorted(glob(pattern), key=lambda file: [int(number) for number in re.findall(r"\d+", file)])
    if not files:
        raise SystemExit(f"there are no weights {pattern}")
    return files[-1]


def build(net: str, batches: MaskBatches, dim: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if net.startswith("timm:"):
        return build_timm(net.removeprefix("timm:"), "segment", batches, decoder_dim=dim)
    return build_ours(net, batches, "segment", seed, decoder_dim=dim)


def build_ours(
    net: str, batches: MaskBatches, task: str, seed: int, patch_size: int | None = None, **head: Any
) -> nn.Module:
    """A net of ours with the head of a task: a space with an arch, a model folder, or a net of timm as ours.

    Args:
        patch_size: Of a space, in place of its own.
    """
    shape = {"img_size": batches.img_size, "in_chans": batches.in_chans, "num_classes": batches.num_classes}
    if Path(net).is_dir():
        source = load_model(net)
        kept = {name: value for name, value in source.options.items() if name not in head_option_names()} | shape
        space = dense_space(get_space(facts_in(net)["space"], **kept), task, **head)
        return build_from(source, space, seed, keep_classifier=False)
    if net.startswith("ours:timm:"):
        name, _, weights = net.removeprefix("ours:timm:").partition(":")
        supernet = Supernet.from_pretrained(
            load_timm(f"timm:{name}:{weights}", 1000, 3) if weights else timm.create_model(name)
        )
        source = supernet.extract(supernet.space.root.largest())
        space = dense_space(supernet.space, task, **head).with_options(**shape)
        return build_from(source, space, seed, keep_classifier=False)
    name, _, arch = net.rpartition(":")
    if name.endswith(".json"):
        entry = json.loads(Path(name).read_text())[arch]
        kept = {key: value for key, value in entry["options"].items() if key not in head_option_names()} | shape
        space = dense_space(get_space(entry["space"], **kept), task, **head)
        return fresh_model(space, space.arch(entry["arch"]), seed)
    shape |= {"patch_size": patch_size} if patch_size else {}
    space = dense_space(get_space(name, **shape), task, **head)
    return fresh_model(space, space.arch(arch), seed)


def speed(model: nn.Module, batches: MaskBatches, recipe: Recipe, steps: int) -> dict[str, float | None]:
    """Images a second and memory of training alone: batches are made before, and what is done once is done."""
    ready = [batch for batch, _ in zip(batches.train_batches(), range(4), strict=False)]
    times, first = dict[int, float](), min(WARM_UP, steps)

    def clock() -> float:
        if batches.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    class Ready:
        def __getattr__(self, name: str) -> Any:
            return getattr(batches, name)

        def train_batches(self, start_step: int = 0) -> Any:
            for step in range(start_step, first + steps + 1):
                if step in (first, first + steps):
                    times[step] = clock()
                yield ready[step % len(ready)]

    if batches.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    timed = replace(recipe, iterations=first + steps + 1, lr=0.0)
    train_model(model, Ready(), timed, quiet=True)  # type: ignore[arg-type]
    seconds = times[first + steps] - times[first]
    memory = torch.cuda.max_memory_allocated() / 2**20 if batches.device.type == "cuda" else None
    return {"images_per_second": steps * batches.batch_size / seconds, "memory_mib": memory}


def measure(net: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    device, options = choose_device(args.device), SegmentOptions(ignore=args.ignore)
    data = open_masks(Path(args.data), options, BadImages(quiet=True), holdout=0.1, seed=seed)
    augment = AugmentOptions(hflip=0.5, color_jitter=args.color_jitter)
    recipe = Recipe(epochs=args.epochs, batch_size=args.batch_size, lr=args.lr, augment=augment, clip_grad=1.0)
    order, sizes = (args.batch_size, seed), {"img_size": args.img_size, "workers": args.workers}
    batches = MaskBatches(data, augment, *order, device=device, options=options, **sizes)
    model = build(net, batches, args.decoder_dim, seed).to(device)
    timed: dict[str, Any] = {}
    if args.steps:
        timed = speed(build(net, batches, args.decoder_dim, seed).to(device), batches, recipe, args.steps)
    start = time.perf_counter()
    train_model(model, batches, recipe, seed=seed, quiet=True, label=net)
    seconds = time.perf_counter() - start
    scores = {f"{split}_miou": evaluate(model, batches, split)["miou"] for split in ("holdout", "test")}  # type: ignore[arg-type]
    return {"params": sum(weight.numel() for weight in model.parameters()), **timed, **scores, "seconds": seconds}


def summarise(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means over the seeds, and the speed and mIoU of each net against the first of timm."""
    results = {
        net: {
            **seeds[0],
            **mean_and_spread(seeds, "test_miou"),
            **mean_and_spread(seeds, "holdout_miou"),
            "seeds": seeds,
        }
        for net, seeds in found.items()
    }
    baseline = next((results[net] for net in results if net.startswith("timm:")), None)
    for one in results.values() if baseline else ():
        if "images_per_second" in one:
            one["speed_ratio"] = one["images_per_second"] / baseline["images_per_second"]
        one["miou_gain"] = one["test_miou"] - baseline["test_miou"]
    return results


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--ignore", default="255")
    parser.add_argument("--img-size", type=int, default=256)
    parser.add_argument("--decoder-dim", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--color-jitter", type=float, default=0.4)
    parser.add_argument(
        "--steps",
        type=int,
        default=30,
        help="steps whose speed is measured, beside other trainings (--jobs) in vain; 0: none",
    )
    add_side_by_side(parser)
    args = parser.parse_args()
    run_side_by_side("segmentation", args, lambda net, seed: measure(net, seed, args), summarise)


if __name__ == "__main__":
    main()
