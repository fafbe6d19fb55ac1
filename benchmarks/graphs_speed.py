"""What CUDA graphs are worth in uncompiled trainings as users run them, and whether the weights stay the same.

    python benchmarks/graphs_speed.py --out graphs.json
    python benchmarks/graphs_speed.py --device cpu --small

In turns, with graphs and without: supernet training at CIFAR's size for two batch sizes, evaluation of subnets with
inherited weights, and the training of a ViT-Ti cut out of a pretrained one with its teacher (224 px, batch 128). Images
are noise in memory, augmented as usual. `difference` is the largest of any weight after 150 steps with and without.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import Any

import timm
import torch

import nasformer
from nasformer.data.images import Data, ImageSet
from nasformer.data.loaders import Batches
from nasformer.data.options import AugmentOptions
from nasformer.supernet.samplers import make_sampler
from nasformer.train.evaluate import SubnetEvaluator
from nasformer.train.loop import Trainer, teacher_of, train_supernet
from record import benchmark_parser, save_record

WAYS = {"graphs": True, "one by one": False}


class Bench:
    """A device, and images of noise for it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device, self.small = torch.device(args.device), args.small
        name, patch = ("autoformer-micro", 8) if args.small else ("autoformer-tiny", 4)
        self.space = nasformer.get_space(name, img_size=32, patch_size=patch, num_classes=100)
        self.images = noise(256 if args.small else 20_000, 32)

    def rate(self, trainer: Trainer, batches: Batches, warm_up: int, steps: int) -> float:
        """Images a second of a training after so many steps."""
        trainer.model.train()
        ahead = batches.train_batches(0)
        with ExitStack() as closing:
            trainer.use_graphs(closing)
            for step in range(warm_up + steps):
                if step == warm_up:
                    self.synchronize()
                    start = time.perf_counter()
                trainer.train_batch(*next(ahead))
            self.synchronize()
        return steps * batches.batch_size / (time.perf_counter() - start)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def supernet(self, batch_size: int, graphs: bool) -> float:
        supernet = nasformer.Supernet(self.space).to(self.device)
        batches = Batches(self.images, AugmentOptions(), batch_size, device=self.device)
        recipe = nasformer.Recipe(iterations=10**6, batch_size=batch_size, graphs=graphs, log_epochs=10**4)
        trainer = Trainer(supernet, batches, recipe, sampler=make_sampler(self.space, "uniform", 0, 0), quiet=True)
        return self.rate(trainer, batches, *((2, 2) if self.small else (260 if graphs else 20, 100 if graphs else 30)))

    def evaluation(self, graphs: bool) -> float:
        supernet = nasformer.Supernet(self.space).to(self.device)
        subnets = SubnetEvaluator(
            supernet, Batches(self.images, AugmentOptions(), 512, device=self.device), graphs=graphs
        )
        archs = [self.space.sample(seed) for seed in range(2 if self.small else 40)]
        for _ in range(3):  # the last round counts
            start = time.perf_counter()
            for arch in archs:
                subnets.evaluate(arch, "holdout")
            self.synchronize()
            seconds = time.perf_counter() - start
        return len(archs) * len(self.images.holdout) / seconds

    def cut_net(self, graphs: bool) -> float:
        size = 32 if self.small else 224
        shrunk = {"patch_size": 8, "embed_dim": 48, "depth": 2} if self.small else {}
        source = timm.create_model("vit_tiny_patch16_224", img_size=size, num_classes=100, **shrunk)
        supernet = nasformer.Supernet.from_pretrained(source).to(self.device)
        teacher = supernet.extract(supernet.space.root.largest())
        batches = Batches(noise(512, size), AugmentOptions(crop="resized"), 128, device=self.device)
        taught: dict[str, Any] = {"teacher_weight": 1.0, "teacher_answers": "soft", "teacher_features": 5.0}
        recipe = nasformer.Recipe(iterations=10**6, graphs=graphs, log_epochs=10**4, clip_grad=1.0, **taught)
        trainer = Trainer(
            supernet.extract(supernet.space.sample(3)),
            batches,
            recipe,
            teacher=teacher_of(recipe, batches, self.device, teacher),
            quiet=True,
        )
        return self.rate(trainer, batches, *((2, 2) if self.small else (40, 40)))

    def difference(self) -> float:
        states = []
        for graphs in WAYS.values():
            supernet = nasformer.Supernet(self.space).to(self.device)
            steps = 4 if self.small else 150
            recipe = nasformer.Recipe(iterations=steps, batch_size=64, lr=1e-4, graphs=graphs)
            train_supernet(supernet, self.images, recipe, quiet=True)
            states.append(supernet.state_dict())
        return max(float((states[0][name] - states[1][name]).abs().max()) for name in states[0])


def noise(count: int, size: int) -> Data:
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (count, 3, size, size), dtype=torch.uint8, generator=source)
    train = ImageSet(images, torch.randint(0, 100, (count,), generator=source))
    few = train.subset(torch.arange(min(count, 2048)))
    return Data("noise", train, few, few, [str(number) for number in range(100)], (0.5,) * 3, (0.25,) * 3)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="tiny nets, to try the script")
    args = parser.parse_args()
    bench, results = Bench(args), dict[str, dict[str, float]]()
    sizes = (16,) if args.small else (128, 1024)
    measures: dict[str, Any] = {f"supernet, 32 px, batch {size}": (bench.supernet, size) for size in sizes}
    measures |= {"evaluation, 32 px": (bench.evaluation,), "cut ViT-Ti with its teacher, 224 px": (bench.cut_net,)}
    for name, (measure, *options) in measures.items():
        figures = {way: measure(*options, graphs) for way, graphs in WAYS.items()}
        results[name] = {**figures, "times_faster": figures["graphs"] / figures["one by one"]}
        print(f"{name:36}", "  ".join(f"{key} {value:,.2f}" for key, value in results[name].items()), flush=True)
        save_record("graphs_speed", vars(args), results, args.out, quiet=True)
    results["weights"] = {"difference": bench.difference()}
    print(results["weights"])
    save_record("graphs_speed", vars(args), results, args.out, quiet=True)


if __name__ == "__main__":
    main()
