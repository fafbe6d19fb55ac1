"""Does reading images keep up with training? Images a second of a supernet's step alone, and fed in several ways.

Makes its own JPEGs of ImageNet's sizes (about 120 KB each; the files stay in the page cache, so that decoding is
measured and not the disk), packs them into shards of 256 px, and trains AutoFormer-T by the ImageNet recipe's
augmentation:

- step: on one batch that is there already,
- memory: from images in memory, augmented on the device,
- files, shards: streamed, as `--data FOLDER --stream true` and `--data SHARDS --stream true` do,
- files by threads, shards by threads: with `--threads`, the same, decoded by the CPU's threads.

`read` is the same feed without the training. `--stages` instead times what happens to one batch of files, stage by
stage: until the call returns, which is what Python has to do, and until the device is done.

    python benchmarks/feed_speed.py --device cuda --compile --out feed.json
    python benchmarks/feed_speed.py --device cpu --img-size 32 --images 60 --batch-size 8 --steps 3 --small
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

import nasformer
from nasformer.data.decode import decode_jpegs
from nasformer.data.images import pad, send
from nasformer.data.loaders import Batch, Batches
from nasformer.data.options import AugmentOptions
from nasformer.data.shards import pack_files
from nasformer.data.sources import list_files, open_files
from nasformer.data.streaming import ImageStream, stream_files
from nasformer.train.evaluate import autocast
from nasformer.utils.cuda_graphs import WARMUP_RUNS, CudaGraphs
from record import benchmark_parser, save_record
from supernet_speed import adamw

SIZES = ((500, 375), (500, 375), (500, 375), (375, 500), (500, 334), (334, 500), (640, 480), (500, 375), (400, 300))
AUGMENT = AugmentOptions(crop="resized", randaugment="rand-m9-mstd0.5-inc1", erasing=0.25, mixup=0.8, cutmix=1.0)
WARM_UP = 6  # steps before the clock starts, in which what is read ahead fills up


def write_jpegs(folder: Path, images: int) -> float:
    """Smooth pictures with grain, whose files are as large as ImageNet's; returns their mean size in bytes."""

    def write(number: int) -> int:
        rng, size = np.random.default_rng(number), SIZES[number % len(SIZES)]
        coarse = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
        grain = rng.normal(0, 18, (size[1], size[0], 1)).astype(np.int16)
        file = io.BytesIO()
        Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=91)
        path = folder / ("train" if number % 20 else "val") / f"class{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        return len(file.getvalue())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return float(np.mean(list(pool.map(write, range(images)))))


class Training:
    """The training step of a supernet, one random arch a step."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        name, options = ("autoformer-micro", {"patch_size": 8}) if args.small else ("autoformer-tiny", {})
        self.space = nasformer.get_space(name, img_size=args.img_size, num_classes=10, **options)
        self.supernet = nasformer.Supernet(self.space).to(device).train()
        self.supernet.graphs = CudaGraphs.on(device)
        if args.compile:
            self.supernet.compile()
        self.optimizer, self.device = adamw(self.supernet), device
        self.archs = [self.space.sample(seed) for seed in range(WARM_UP + args.steps)]

    def warm_up(self, batch: Batch) -> float:
        """Compiles every kind of block, and has what comes often recorded; returns the seconds of the compilation."""
        start = time.perf_counter()
        for arch in self.archs:
            self.step(batch, arch)
        synchronize(self.device)
        seconds = time.perf_counter() - start
        for arch in self.archs * WARMUP_RUNS if self.supernet.graphs else []:
            self.step(batch, arch)
        return seconds

    def step(self, batch: Batch, arch: nasformer.Arch) -> None:
        images, targets = batch
        with autocast(self.device):
            loss = F.cross_entropy(self.supernet(images, arch), targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def rate(self, batches: Iterator[Batch], steps: int) -> float:
        """Images a second, waited for once at the end, as a training does."""
        return rate(batches, steps, self.device, lambda step, batch: self.step(batch, self.archs[step]))


def rate(
    batches: Iterator[Batch], steps: int, device: torch.device, use: Callable[[int, Batch], None] | None = None
) -> float:
    images = 0
    for step, batch in enumerate(islice(batches, WARM_UP + steps)):
        if step == WARM_UP:
            synchronize(device)
            start = time.perf_counter()
        if use:
            use(step, batch)
        images += len(batch[0]) * (step >= WARM_UP)
    synchronize(device)
    return images / (time.perf_counter() - start)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(feed: Batches, training: Training, steps: int) -> dict[str, float]:
    alone = feed.train_batches()
    figures = {"read": rate(alone, steps, feed.device)}
    if hasattr(alone, "close"):
        alone.close()  # what it reads ahead would go on beside the training
    return {**figures, "train": training.rate(feed.train_batches(), steps)}


def time_stages(feed: Batches, stream: ImageStream) -> dict[str, dict[str, float]]:
    """Milliseconds of each stage of a batch: in the calling thread, and until the device is done."""
    numbers, device = feed.train_part(0).tolist(), feed.device
    contents = [stream.files.read(number) for number in numbers]
    images = decode_jpegs(contents, 3, device)
    bounded = [stream._bounded(image) for image in images]
    fill = send(stream.fill, device)
    padded, sizes = pad(bounded, fill)
    labels = send(stream.labels[numbers], device)
    halves = contents[: len(contents) // 2], contents[len(contents) // 2 :]
    decode = partial(decode_jpegs, channels=3, device=device)
    with ThreadPoolExecutor(2) as pool:
        work: dict[str, Callable[[], object]] = {
            "read the files, one thread": lambda: [stream.files.read(number) for number in numbers],
            "read and look into them": lambda: stream._read(numbers, True),
            "decode": lambda: decode(contents),
            "decode, two halves by two threads": lambda: list(pool.map(decode, halves)),
            "scale the largest": lambda: [stream._bounded(image) for image in images],
            "pad": lambda: pad(bounded, fill),
            "augment": lambda: feed.augment(padded, labels, 0, 0, sizes=sizes, img_size=feed.img_size),
        }
        return {name: time_stage(stage, device) for name, stage in work.items()}


def time_stage(work: Callable[[], object], device: torch.device, rounds: int = 5) -> dict[str, float]:
    called, done = list[float](), list[float]()
    for _ in range(rounds + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        called.append(1000 * (time.perf_counter() - start))
        synchronize(device)
        done.append(1000 * (time.perf_counter() - start))
    return {"ms until it returns": median(called[1:]), "ms until it is done": median(done[1:])}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--stages", action="store_true", help="time the stages of a batch of files, and nothing else")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--small", action="store_true", help="a micro supernet, to try the script")
    parser.add_argument("--threads", action="store_true", help="on a GPU, also decoding by the CPU's threads")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if args.device != "cpu":
        torch.set_num_threads(1)  # as in training
    device, results = torch.device(args.device), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        photos, shards = Path(folder) / "photos", Path(folder) / "shards"
        jpeg_bytes = write_jpegs(photos, args.images)
        start = time.perf_counter()
        pack_files(list_files(str(photos)), shards, round(args.img_size * 256 / 224), 90, 2000, 0.01)
        results["packing"] = {
            "bytes an image": jpeg_bytes,
            "images packed a second": args.images / (time.perf_counter() - start),
        }
        opened = {
            name: open_files(str(path), img_size=args.img_size)
            for name, path in (("files", photos), ("shards", shards))
        }
        common = (AUGMENT, args.batch_size, 0, 0, 1, device)
        if args.stages:
            streamed = Batches(stream_files(opened["files"]), *common)
            tell_stages(args, time_stages(streamed, streamed.data.uncropped.to(device)))
            return
        memory, training = Batches(opened["shards"].decode(uncropped=True), *common), Training(args, device)
        batch = memory.train(0)
        results["step"] = {"compiled in seconds": training.warm_up(batch)}
        results["step"]["train"] = training.rate(iter([batch] * (WARM_UP + args.steps)), args.steps)
        tell(args, results)
        results["memory"] = measure(memory, training, args.steps)
        tell(args, results)
        for name, files in opened.items():
            results.setdefault(name, {}).update(measure(Batches(stream_files(files), *common), training, args.steps))
            tell(args, results)
        on_gpu, ImageStream.decodes_on_gpu = ImageStream.decodes_on_gpu, property(lambda self: False)  # type: ignore[assignment]
        for name, files in opened.items() if device.type == "cuda" and args.threads else ():
            results[f"{name} by threads"] = measure(Batches(stream_files(files), *common), training, args.steps)
            tell(args, results)
        ImageStream.decodes_on_gpu = on_gpu  # type: ignore[method-assign]


def tell_stages(args: argparse.Namespace, results: dict[str, dict[str, float]]) -> None:
    for name, figures in results.items():
        print(f"{name:36}", "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()), flush=True)
    save_record("feed_speed", vars(args), results, args.out, quiet=True)


def tell(args: argparse.Namespace, results: dict[str, dict[str, float]]) -> None:
    """Prints the newest figures and records all, so that a run that is cut short leaves what it has."""
    for figures in results.values():
        if "train" in figures:
            figures["share of the step alone"] = figures["train"] / results["step"]["train"]
    name, figures = list(results.items())[-1]
    print(f"{name:18}", "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()), flush=True)
    save_record("feed_speed", vars(args), results, args.out, quiet=True)


if __name__ == "__main__":
    main()
