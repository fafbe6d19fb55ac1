"""Training speed and memory of every task, beside a plain model of torchvision or timm with a ResNet-50.

    python benchmarks/task_speed.py --device cuda --out record.json

The first net of each task is the library's, by which the others are divided: torchvision's DeepLabV3 for segmentation,
and for panoptic segmentation, of which it has none; torchvision's Mask R-CNN; for questions timm's ResNet as a
classifier, as no library in reach answers them. "resnet50" is timm's with our head (for segmentation DeepLabV3 with
the same holes), so head against head; SPACE:ARCH is a net of ours with the task's usual head. Images, boxes and words
are random and lie on the device; all nets are trained by our loop, on a GPU in bfloat16. Memory is the peak that torch
allocates on the GPU, with weights and optimiser; on a CPU none is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torchvision.models.segmentation import deeplabv3_resnet50

from detection import TorchvisionDetector
from nasformer.data.loaders import ImageText
from nasformer.tasks.registry import get_task
from nasformer.train.evaluate import CLASSIFICATION, Objective
from nasformer.train.recipe import Recipe
from nasformer.utils.device import choose_device
from record import benchmark_parser, save_record
from segmentation import build_ours, build_timm, speed

TASKS = ("segment", "panoptic", "detect", "vqa")
LIBRARY, RESNET = "library", "resnet50"
CLASSES = {"segment": 21, "panoptic": 133, "detect": 80, "vqa": 3129}
"""As many as Pascal VOC, COCO and VQA 2.0 have."""
THINGS, OBJECTS, WORDS, VOCABULARY = 80, 8, 20, 10000


class RandomBatches:
    """Random images with targets of a task, on the device; the same ones in every step.

    Args:
        objective: Of the task that is trained; a library's model may have another one.
    """

    in_chans, held_out, steps_per_epoch = 3, 0, 1

    def __init__(self, task: str, objective: Objective, img_size: int, batch_size: int, device: torch.device) -> None:
        self.task, self.objective, self.device = task, objective, device
        self.img_size, self.batch_size = img_size, batch_size
        self.num_classes, self.num_things = CLASSES[task], THINGS

    @property
    def head_options(self) -> dict[str, Any]:
        """What the head must know of the data."""
        of_words = {"vocab_size": VOCABULARY, "max_words": WORDS}
        return {"panoptic": {"num_things": THINGS}, "vqa": of_words}.get(self.task, {})

    def train_batches(self, start_step: int = 0) -> Iterator[tuple[Any, Any]]:
        images = torch.randn(self.batch_size, 3, self.img_size, self.img_size, device=self.device)
        targets = on_device(self.targets(), self.device)
        words = torch.randint(1, VOCABULARY, (self.batch_size, WORDS), device=self.device)
        has_text = self.task == "vqa" and self.objective is not CLASSIFICATION
        while True:
            yield ImageText(images, words) if has_text else images, targets

    def targets(self) -> Any:
        if self.task != "detect":
            return self.objective.example_targets(self.batch_size, self)  # type: ignore[arg-type]
        return [random_objects(self.img_size, self.num_classes) for _ in range(self.batch_size)]


def random_objects(size: int, num_classes: int) -> dict[str, Tensor]:
    """Boxes of a quarter of the image's side, each with a mask that fills it."""
    corners = torch.rand(OBJECTS, 2) * size * 0.75
    boxes = torch.cat([corners, corners + size / 4], 1).round()
    masks = torch.zeros(OBJECTS, size, size, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    return {"boxes": boxes, "labels": torch.randint(1, num_classes + 1, (OBJECTS,)), "masks": masks}


def on_device(targets: Any, device: torch.device) -> Any:
    if isinstance(targets, Tensor):
        return targets.to(device)
    return [{name: value.to(device) for name, value in one.items()} for one in targets]


class TorchvisionSegmenter(nn.Module):
    """torchvision's DeepLabV3 without its auxiliary head: logits of every pixel."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=num_classes, aux_loss=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)["out"]  # type: ignore[no-any-return]


def library_objective(task: str) -> Objective:
    """What the library's model of a task is trained for."""
    if task == "vqa":
        return CLASSIFICATION
    return get_task("segment" if task == "panoptic" else task).objective


def build(net: str, task: str, batches: Any, dim: int) -> nn.Module:
    if net == LIBRARY:
        if task == "vqa":
            return timm.create_model(RESNET, num_classes=CLASSES[task])
        return TorchvisionDetector(RESNET, CLASSES[task]) if task == "detect" else TorchvisionSegmenter(CLASSES[task])
    head = {"decoder_dim": dim, **batches.head_options}
    if net == RESNET:
        holes: dict[str, Any] = {"head": "deeplabv3", "stride": 8} if task == "segment" else {}
        return build_timm(RESNET, task, batches, **holes, **head)
    return build_ours(net, batches, task, 0, **head)


def measure(net: str, task: str, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    objective = library_objective(task) if net == LIBRARY else get_task(task).objective
    batches = RandomBatches(task, objective, args.img_size, args.batch_size, device)
    torch.manual_seed(0)
    model = build(net, task, batches, args.decoder_dim).to(device)
    found = speed(model, batches, Recipe(batch_size=args.batch_size), args.steps)  # type: ignore[arg-type]
    print(f"{task}, {net}: {found}", flush=True)
    return {"params": sum(weight.numel() for weight in model.parameters()), **found}


def compare(task: str, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Every net of a task, and its speed and memory as a share of the library's."""
    results = {net: measure(net, task, args, device) for net in (LIBRARY, RESNET, *args.nets)}
    library = SimpleNamespace(**results[LIBRARY])
    for found in results.values():
        found["speed_ratio"] = found["images_per_second"] / library.images_per_second
        found["memory_ratio"] = found["memory_mib"] / library.memory_mib if library.memory_mib else None
    return results


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--nets", nargs="*", default=["s3-tiny:smallest"])
    parser.add_argument("--img-size", type=int, default=512)
    parser.add_argument("--decoder-dim", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30, help="steps whose speed is measured")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    results = {task: compare(task, args, choose_device(args.device)) for task in args.tasks}
    save_record("task_speed", vars(args), results, args.out)


if __name__ == "__main__":
    main()
