"""Detection by one recipe: backbones of ours beside encoders of timm and torchvision's own Mask R-CNN.

    tar xf pennfudan_320.tar
    python benchmarks/detection.py --data pennfudan_320 --seeds 3 --out record.json \
        --nets s3-tiny:smallest timm:resnet18 torchvision:resnet50
    tar xf coco_mini_320.tar
    python benchmarks/detection.py --data coco_mini_320 --splits train --no-jitter --out overfit.json \
        --nets s3-tiny:smallest timm:resnet18:FILE

A net is SPACE:ARCH (from scratch), FOLDER (a model of a run, whose backbone is trained on), timm:NAME (from scratch) or
timm:NAME:FILE (with weights in safetensors) with our head, ours:timm:NAME[:FILE] (the same net as a family of ours),
or torchvision:resnet18 and the like (torchvision's own Mask R-CNN on its own ResNet, from scratch). The first net of
timm or torchvision is the baseline of all ratios. AP is COCO's, by pycocotools, at the images' own size; the weights
are those of the last step. On the train part, without jitter, it shows whether targets and losses are right.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

from nasformer.data.files import BadImages
from nasformer.data.options import AugmentOptions
from nasformer.tasks.boxes import open_scenes
from nasformer.tasks.detect import CocoAP, SceneBatches
from nasformer.tasks.options import DetectOptions
from nasformer.train.evaluate import predictions
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from nasformer.utils.device import choose_device
from record import add_side_by_side, benchmark_parser, mean_and_spread, run_side_by_side
from segmentation import build_ours, build_timm, speed


class TorchvisionDetector(nn.Module):
    """torchvision's Mask R-CNN as it is, for images that are normalised and fitted already."""

    def __init__(self, name: str, num_classes: int) -> None:
        super().__init__()
        backbone = resnet_fpn_backbone(backbone_name=name, weights=None, trainable_layers=5, norm_layer=nn.BatchNorm2d)
        plain: dict[str, Any] = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3, "_skip_resize": True}
        self.net = MaskRCNN(backbone, num_classes + 1, **plain)
        self.net.transform.postprocess = lambda found, *sizes: found  # masks stay within their boxes

    def forward(self, x: Tensor, targets: Any = None) -> Any:
        return self.net(list(x), targets)


def build(net: str, batches: SceneBatches, args: argparse.Namespace, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    head = {"decoder_dim": args.decoder_dim, "head": args.head}
    if net.startswith("torchvision:"):
        return TorchvisionDetector(net.removeprefix("torchvision:"), batches.num_classes)
    if net.startswith("timm:"):
        return build_timm(net.removeprefix("timm:"), "detect", batches, **head)
    return build_ours(net, batches, "detect", seed, **head)


def score(model: nn.Module, batches: SceneBatches, split: str) -> dict[str, float]:
    metric = CocoAP(batches.classes, batches.img_size, ("bbox", "segm"))
    for answers, scenes in predictions(model, batches, split):  # type: ignore[arg-type]
        metric.update(answers, scenes)  # type: ignore[arg-type]
    return metric.compute()


def open_batches(args: argparse.Namespace, seed: int, device: torch.device) -> tuple[SceneBatches, Recipe]:
    jitter = {"scale_min": 1.0, "scale_max": 1.0} if args.no_jitter else {}
    options, augment = DetectOptions(**jitter), AugmentOptions(hflip=0.0 if args.no_jitter else 0.5)
    amounts: dict[str, Any] = {"holdout": args.holdout, "seed": seed, "train_images": args.train_images}
    data = open_scenes(Path(args.data), options, BadImages(quiet=True), **amounts)
    length: dict[str, Any] = {"iterations": args.iterations} if args.iterations else {"epochs": args.epochs}
    recipe = Recipe(
        **length,
        batch_size=args.batch_size,
        lr=args.lr,
        weight_decay=args.weight_decay,
        augment=augment,
        clip_grad=1.0,
    )
    order = (args.batch_size, seed)
    sizes: dict[str, Any] = {"device": device, "img_size": args.img_size, "workers": args.workers}
    return SceneBatches(data, augment, *order, options=options, **sizes), recipe


def measure(net: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    device = choose_device(args.device)
    batches, recipe = open_batches(args, seed, device)
    model = build(net, batches, args, seed).to(device)
    timed = speed(build(net, batches, args, seed).to(device), batches, recipe, args.steps) if args.steps else {}
    start = time.perf_counter()
    train_model(model, batches, recipe, seed=seed, quiet=True, label=net)
    seconds = time.perf_counter() - start
    scores = {f"{split}_{name}": value for split in args.splits for name, value in score(model, batches, split).items()}
    return {"params": sum(weight.numel() for weight in model.parameters()), **timed, **scores, "seconds": seconds}


def summarise(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means over the seeds, and the speed of each net against the first of timm or torchvision."""
    results = dict[str, Any]()
    for net, seeds in found.items():
        names = [name for name in seeds[0] if name.endswith(("box_ap", "mask_ap"))]
        means = {name: value for one in names for name, value in mean_and_spread(seeds, one).items()}
        results[net] = {**seeds[0], **means, "seeds": seeds}
    baseline = next((results[net] for net in results if net.startswith(("timm:", "torchvision:"))), None)
    for one in results.values() if baseline and "images_per_second" in baseline else ():
        one["speed_ratio"] = one["images_per_second"] / baseline["images_per_second"]
    return results


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--head", choices=("mask-rcnn", "cascade"), default="mask-rcnn")
    parser.add_argument("--img-size", type=int, default=320)
    parser.add_argument("--decoder-dim", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--iterations", type=int, default=0, help="steps, in place of epochs")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--holdout", type=float, default=0.1)
    parser.add_argument("--train-images", type=int, help="how many of them; all by default")
    parser.add_argument("--splits", nargs="+", choices=("train", "holdout", "test"), default=["holdout", "test"])
    parser.add_argument("--no-jitter", action="store_true", help="images as they are in training, too: to over-fit")
    parser.add_argument(
        "--steps",
        type=int,
        default=30,
        help="steps whose speed is measured, beside other trainings (--jobs) in vain; 0: none",
    )
    add_side_by_side(parser)
    args = parser.parse_args()
    run_side_by_side("detection", args, lambda net, seed: measure(net, seed, args), summarise)


if __name__ == "__main__":
    main()
