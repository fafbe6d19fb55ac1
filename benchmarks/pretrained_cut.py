"""Cuts a pretrained net to shares of its MACs: searched archs beside uniform and random ones, all finished alike.

python benchmarks/pretrained_cut.py --net timm:deit_tiny_patch16_224:weights.safetensors --data flowers.npz \
    --seeds 3 --budgets 75 58 50 35 --jobs 14 --out cut.json

For each seed: the full net is fine-tuned, sorted, made a supernet and searched for each budget, on the held-out images
of the .npz. Then every arch is cut out of the full net and trained by it. Trainings are processes of their own,
`--jobs` of them at a time. Test images are seen once, by each finished net (`--split holdout` to choose settings).
The record is written anew after each of them, random archs last; the same command goes on with what is left.

Where Torch-Pruning (pip install torch-pruning) is installed, its cut of the same net is finished alike: the dimensions
of heads and the neurons of all blocks, ranked together by Taylor importance on the same images (its isomorphic way).
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.data.images import ImageSet, Pixels
from nasformer.data.loaders import Batches
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import load_data
from nasformer.layers.attention import SelfAttention
from nasformer.layers.blocks import Mlp
from nasformer.models.base import Backbone
from nasformer.models.space import Space
from nasformer.models.storage import WeightFacts, build_from
from nasformer.runs.pretrained import sort_net
from nasformer.search.run import search
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, sample_feasible
from nasformer.supernet.storage import find_pretrained, supernet_from
from nasformer.train.evaluate import SubnetEvaluator, evaluate
from nasformer.train.loop import train_model, train_supernet
from nasformer.train.recipe import Recipe
from nasformer.utils.files import write_json
from record import benchmark_parser, save_record

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SETTINGS: dict[str, Any] = {
    "batch": 128,
    "full": {"iterations": 480, "lr": 5e-4, "layer_decay": 0.75},
    "supernet": {"iterations": 1920, "lr": 5e-4, "sandwich": 2},
    "finish": {"iterations": 960, "lr": 1e-3},
    "teacher_weight": 1.0,
    "teacher_features": 5.0,
    "importance": "gate",
    "start": "full",
    "choices": {},
    "search": {"population": 50, "generations": 8},
    "objectives": ["accuracy"],
    "img_size": 224,
    "holdout": 0.1,
}
KINDS = ("full", "searched", "uniform", "torch-pruning", "random")
NEAR = 0.95
"""Archs of a budget have from this share of it on: searched, uniform and random ones alike."""


def recipe(settings: dict[str, Any], stage: str) -> Recipe:
    common = {"batch_size": settings["batch"], "min_lr": 1e-6, "clip_grad": 1.0, "warmup_epochs": 5, "log_epochs": 20}
    taught = {name: settings[name] for name in ("teacher_weight", "teacher_features")} if stage != "full" else {}
    common |= {"teacher_answers": "soft"}
    augment = AugmentOptions(crop="resized", **settings.get("augment", {}))
    return Recipe(**{**common, **taught, **settings[stage]}, augment=augment)


def load(path: str, settings: dict[str, Any], facts: WeightFacts, seed: int) -> Batches:
    """The images of a set, scaled up, in batches; where it has no hold-out, a part of train becomes one."""
    data = load_data(path, holdout=settings["holdout"], seed=seed, quiet=True)
    data = replace(data, mean=facts.mean, std=facts.std)
    augment = recipe(settings, "full").augment
    return ScaledBatches(settings["img_size"], data, augment, settings["batch"], seed, device=DEVICE)


class ScaledBatches(Batches):
    """Batches of images that are scaled up on the device: those to judge nets on all at once, those to train on when
    they are drawn, as 50,000 of 224 px would take 8 GB of the GPU in each of the processes that share it.
    """

    def __init__(self, size: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.size = size

    @property
    def img_size(self) -> int:
        return self.size

    def _split(self, split: str) -> ImageSet:
        if split not in self._on_device:
            images = getattr(self.data, split).to(self.device)
            drawn = ScaledSet(images.images, images.labels, self.size)
            self._on_device[split] = drawn if split == "train" else ImageSet(drawn.scaled(images.images), images.labels)
        return self._on_device[split]  # type: ignore[return-value]


@dataclass
class ScaledSet(ImageSet):
    """Small images that are scaled up when they are drawn."""

    size: int

    def batches(self, parts: Iterable[Tensor], replace: bool = False) -> Iterator[Pixels]:
        for batch in super().batches(parts):
            yield Pixels(self.scaled(batch.images), batch.labels)

    def scaled(self, images: Tensor) -> Tensor:
        size = (self.size, self.size)
        chunks = [F.interpolate(chunk.float(), size, mode="bicubic", antialias=True) for chunk in images.split(256)]
        return torch.cat([chunk.round().clamp(0, 255).to(torch.uint8) for chunk in chunks])


def space_of(space: Space, batches: Batches, settings: dict[str, Any]) -> Space:
    """What can be cut out of the net for these images; `choices` opens further dimensions, such as embed_dim."""
    space = space.with_options(num_classes=batches.num_classes, img_size=batches.img_size)
    return space.with_choices(settings["choices"]) if settings["choices"] else space


def prepare(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Full net, supernet and archs of one seed; trainings that were stopped go on."""
    folder, seed, start = Path(args.folder), args.seed, time.perf_counter()
    if (folder / "jobs.json").exists():
        found = json.loads((folder / "jobs.json").read_text())
        print(json.dumps({"seed": seed, "full": found["full"], "times": found["times"]}), flush=True)
        return
    source = find_pretrained(args.net)
    batches = load(args.data, settings, source.facts, seed)
    space = space_of(source.space, batches, settings)
    full = build_from(source.model, space, seed, keep_classifier=False).to(DEVICE)
    train_model(full, batches, recipe(settings, "full"), folder=folder / "full", seed=seed, quiet=True)
    times = {"full": time.perf_counter() - start}
    labelled = labelled_images(batches)
    sort_net(full, space, lambda: labelled, settings["importance"])
    supernet = supernet_from(full, space)
    teacher = supernet_from(full, space).extract(space.root.largest())
    if "searched" in args.kinds:
        kept = folder / "supernet"
        stage = recipe(settings, "supernet")
        train_supernet(supernet, batches, stage, folder=kept, seed=seed, teacher=teacher, quiet=True)
    times["supernet"] = time.perf_counter() - start - times["full"]
    evaluator, whole = SubnetEvaluator(supernet.eval(), batches), space.costs(space.root.largest())["macs"]
    # The full net takes part in the last training, too: it gains from it as the others do.
    full_job = {"100 full": {"arch": space.root.largest().to_dict(), "macs": 1.0}}
    jobs: dict[str, Any] = full_job if "full" in args.kinds else {}
    for share in args.budgets:
        budget = Budget(min_macs=NEAR * share / 100 * whole, max_macs=share / 100 * whole)
        archs = searched(space, evaluator, budget, settings, seed) if "searched" in args.kinds else {}
        archs |= {"uniform": uniform(space, budget)} if "uniform" in args.kinds else {}
        rng = random.Random(f"{seed} {share}")
        for index in range(args.random if "random" in args.kinds else 0):
            archs[f"random {index + 1}"] = sample_feasible(space.root, rng, space.costs, budget.windows())
        for name, arch in archs.items():
            facts = {"macs": space.costs(arch)["macs"] / whole, "inherited": evaluator.accuracy(arch, "holdout")}
            jobs[f"{share} {name}"] = {"arch": arch.to_dict(), **facts, "params": space.costs(arch)["params"]}
        if "torch-pruning" in args.kinds and find_spec("torch_pruning"):
            jobs[f"{share} torch-pruning"] = prune_to(full, labelled, share / 100 * whole, whole)
    times["search"] = time.perf_counter() - start - sum(times.values())
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(full.state_dict(), folder / "full.pt")
    torch.save(supernet.weights.state_dict(), folder / "supernet.pt")
    splits = ("holdout", args.split) if args.split == "test" else ("holdout",)
    accuracy = {split: evaluate(full, batches, split)["accuracy"] for split in splits}
    write_json(folder / "jobs.json", {"jobs": jobs, "full": accuracy, "times": times})
    print(json.dumps({"seed": seed, "full": accuracy, "times": times}), flush=True)


def searched(
    space: Space, evaluator: SubnetEvaluator, budget: Budget, settings: dict[str, Any], seed: int
) -> dict[str, Arch]:
    """The winners of searches by each of the objectives, all on the held-out images; accuracy's has the plain name."""
    archs, start = {}, uniform(space, budget)
    seeds = [start.to_dict()] if budget.fits(space.costs(start)) else []  # as a run does
    for objective in settings["objectives"]:
        name = "searched" if objective == "accuracy" else f"searched by {objective.removeprefix('-')}"
        options: dict[str, Any] = {"options": {**settings["search"], "seeds": seeds}, "objectives": (objective,)}
        archs[name] = search(space, evaluator, space.costs, budget=budget, seed=seed, **options).best.arch
    return archs


def uniform(space: Space, budget: Budget) -> Arch:
    """The arch whose blocks are all alike, in the budget, with heads and neurons cut most evenly."""
    largest = space.root.largest()
    block, depth = largest.blocks[0], len(largest.blocks)
    steps = space.root.fields["blocks"].item.fields["hidden_dim"].values  # type: ignore[attr-defined]
    found: list[tuple[float, Arch]] = []
    for heads in range(1, block.num_heads + 1):
        for neurons in steps[1:]:
            blocks = [{"num_heads": heads, "hidden_dim": neurons}] * depth
            arch = space.arch({"embed_dim": largest.embed_dim, "blocks": blocks})
            found.append((abs(heads / block.num_heads - neurons / block.hidden_dim), arch))
    limit = budget.max_macs or 0
    macs = {id(arch): space.costs(arch)["macs"] for _, arch in found}
    fitting = [(uneven, arch) for uneven, arch in found if macs[id(arch)] <= limit]
    near = [item for item in fitting if macs[id(item[1])] >= 0.9 * limit]
    return min(near, key=lambda item: item[0])[1] if near else max(fitting, key=lambda item: macs[id(item[1])])[1]


def labelled_images(batches: Batches) -> list[tuple[Tensor, Tensor]]:
    """Training images with their classes, by which importance is measured."""
    return list(batches.evaluation("train", 64))[:16]


def prune_to(full: Backbone, labelled: Iterable[tuple[Tensor, Tensor]], limit: float, whole: float) -> dict[str, Any]:
    """The smallest ratio by which Torch-Pruning brings a net below a limit of MACs, and what is left."""
    low, high = 0.0, 0.9
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (low, middle) if left_macs(pruned(full, labelled, middle), full, whole) <= limit else (middle, high)
    net = pruned(full, labelled, high)
    params = sum(weight.numel() for weight in net.parameters())
    return {"ratio": high, "macs": left_macs(net, full, whole) / whole, "params": params}


def pruned(full: Backbone, labelled: Iterable[tuple[Tensor, Tensor]], ratio: float) -> Backbone:
    """A copy of a net that Torch-Pruning has cut by a ratio; the embedding keeps its width, as in our space."""
    import torch_pruning as tp

    net = copy.deepcopy(full).eval().requires_grad_(True)
    net.zero_grad()
    for x, classes in labelled:
        F.cross_entropy(net(x), classes).backward()
    attentions = [block.attn for block in net.blocks]
    heads = {attention.qkv: attention.qkv.out_features // 3 // attention.head_dim for attention in attentions}
    with warnings.catch_warnings(action="ignore"):
        pruner = tp.pruner.MetaPruner(
            net.blocks,
            net.patch_embed(x[:1]).detach(),
            tp.importance.GroupTaylorImportance(),
            global_pruning=True,
            isomorphic=True,
            pruning_ratio=ratio,
            max_pruning_ratio=0.9,
            num_heads=heads,
            prune_head_dims=True,
            ignored_layers=[linear for block in net.blocks for linear in (block.attn.proj, block.mlp.fc2)],
            root_module_types=[nn.Linear],
        )
        for group in pruner.step(interactive=True):
            group.prune()
    for attention in attentions:
        attention.head_dim = attention.qkv.out_features // 3 // heads[attention.qkv]
    net.zero_grad()
    return net


def left_macs(net: Backbone, full: Backbone, whole: float) -> float:
    return whole - sum(map(block_macs(full), full.blocks)) + sum(map(block_macs(net), net.blocks))


def block_macs(net: Backbone) -> Callable[[Any], float]:
    tokens = net.patch_embed.pos_embed.shape[1]

    def count(block: Any) -> float:
        qkv, fc1 = block.attn.qkv, block.mlp.fc1
        attention = SelfAttention.cost(tokens, qkv.in_features, qkv.out_features // 3)
        return (attention + Mlp.cost(tokens, fc1.in_features, fc1.out_features)).macs

    return count


def finish(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    """One arch cut out and trained; its accuracy as a line of JSON."""
    folder, seed = Path(args.folder), args.seed
    source = find_pretrained(args.net)
    batches = load(args.data, settings, source.facts, seed)
    space = space_of(source.space, batches, settings)
    full = space.build(space.root.largest()).to(DEVICE)
    full.load_state_dict(torch.load(folder / "full.pt", weights_only=True, map_location=DEVICE))
    begin = supernet_from(full, space)
    if settings["start"] == "supernet":
        begin.weights.load_state_dict(torch.load(folder / "supernet.pt", weights_only=True, map_location=DEVICE))
    job = json.loads((folder / "jobs.json").read_text())["jobs"][args.job]
    if "ratio" in job:
        model: nn.Module = pruned(full, labelled_images(batches), job["ratio"])
    else:
        model = begin.extract(space.arch(job["arch"]))
    start = time.perf_counter()
    kept = folder / args.job.replace(" ", "-")
    train_model(model, batches, recipe(settings, "finish"), folder=kept, seed=seed, teacher=full, quiet=True)
    seconds = time.perf_counter() - start
    splits = ("holdout", "test") if args.split == "test" else ("holdout",)
    scores = {split: evaluate(model, batches, split)["accuracy"] for split in splits}
    write_json(folder / "finished" / f"{args.job}.json", {**scores, "seconds": seconds})
    shutil.rmtree(kept)
    print(json.dumps({**scores, "seconds": seconds}), flush=True)


def child(args: argparse.Namespace, mode: str, folder: Path, seed: int, job: str = "") -> dict[str, Any]:
    words = [sys.executable, __file__, "--mode", mode, "--net", args.net, "--data", args.data, "--split", args.split]
    words += ["--folder", str(folder), "--seed", str(seed), "--job", job]
    words += [word for settings in args.settings for word in ("--settings", settings)]
    words += ["--random", str(args.random), "--kinds", *args.kinds, "--budgets", *map(str, args.budgets)]
    done = subprocess.run(words, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    result = json.loads(lines[-1]) if done.returncode == 0 and lines else {"failed": done.stderr[-1500:]}
    print(f"{mode} {folder.name} {job}: {json.dumps(result)}", flush=True)
    return result


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--net", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--budgets", type=int, nargs="+", default=[75, 58, 50, 35])
    parser.add_argument("--random", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is trained in the end")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--split", choices=("holdout", "test"), default="test")
    parser.add_argument("--settings", action="append", default=[], help="JSON that changes SETTINGS; may be repeated")
    parser.add_argument("--work", default="cut", help="folder for weights and archs")
    for hidden in ("mode", "folder", "job"):
        parser.add_argument(f"--{hidden}", default="", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    args = parser.parse_args()
    settings = reduce(merged, map(json.loads, args.settings), SETTINGS)
    if args.mode:
        return (prepare if args.mode == "prepare" else finish)(args, settings)
    seeds = range(args.seed, args.seed + args.seeds)
    folders = {seed: Path(args.work) / f"{args.net.split(':')[1]}-{seed}" for seed in seeds}
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda item: child(args, "prepare", item[1], item[0]), folders.items()))
        contents = {seed: contents_of(folder) for seed, folder in folders.items()}
        tasks = [(seed, job) for job in sorted(contents[args.seed]["jobs"], key=drawn) for seed in seeds]
        left = [task for task in tasks if "seconds" not in contents[task[0]]["jobs"][task[1]]]
        running = {pool.submit(child, args, "finish", folders[task[0]], *task): task for task in left}
        for done in as_completed(running):
            seed, job = running[done]
            contents[seed]["jobs"][job] |= done.result()
            save(args, settings, list(contents.values()))
    if any("failed" in job for content in contents.values() for job in content["jobs"].values()):
        sys.exit("a training failed; the same command tries it again")
    save(args, settings, list(contents.values()))
    for name, found in table(list(contents.values()), args.split).items():
        print(f"{name:16} {100 * found['mean']:6.2f} +- {100 * found['std']:.2f}  (n={found['n']})")
    return None


def contents_of(folder: Path) -> dict[str, Any]:
    """The jobs of a seed, with what those that are finished came to."""
    content = json.loads((folder / "jobs.json").read_text())
    for path in (folder / "finished").glob("*.json"):
        content["jobs"][path.stem] |= json.loads(path.read_text())
    return content


def drawn(job: str) -> bool:
    return "random" in job


def save(args: argparse.Namespace, settings: dict[str, Any], contents: list[dict[str, Any]]) -> None:
    results = {"summary": table(contents, args.split), "runs": contents}
    save_record("pretrained_cut", {**vars(args), "settings": settings}, results, args.out, quiet=True)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {**base, **{k: {**base[k], **v} if isinstance(base.get(k), dict) else v for k, v in changes.items()}}


def table(contents: list[dict[str, Any]], split: str) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of each kind of arch, random ones together."""
    rows: dict[str, list[float]] = {"full": [content["full"][split] for content in contents]}
    for content in contents:
        for name, job in content["jobs"].items():
            if split in job:
                rows.setdefault(name.split(" random")[0] + (" random" if "random" in name else ""), []).append(
                    job[split]
                )
    summary = {}
    for name, values in rows.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        summary[name] = {"mean": statistics.fmean(values), "std": spread, "n": len(values)}
    return summary


if __name__ == "__main__":
    main()
