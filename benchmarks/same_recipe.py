"""Trains several models by one recipe and compares them: our archs, presets, and models of timm.

python benchmarks/same_recipe.py --config recipes/esformer-imagenette.yaml --data imagenette.npz --models models.json \
    --seeds 2 --jobs 8 --out compare.json

`models.json` holds models by name, {"space": "esformer-s0", "arch": {...}} or {"timm": "edgenext_x_small"}, each with
further `"options"` if need be; `rivals.py` makes such a file of a run, with the accuracy that each arch inherits there.
Winner and random archs are ranked by both accuracies; the record has Kendall's tau of the two rankings. Each training
is a process of its own, and `--jobs` of them share the device. No choice is made on the test images: every model is
trained to the end and evaluated once. The record is written anew after each training; with the same --out a training
that it holds is not done again, and one that was stopped goes on from a checkpoint beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nasformer
from nasformer.cli.main import find_command, make_parser
from nasformer.runs.base import load_batches
from nasformer.runs.baselines import build_timm
from nasformer.runs.options import RetrainCommand
from nasformer.train.evaluate import evaluate
from nasformer.train.loop import train_model
from nasformer.utils.device import World, choose_device
from nasformer.utils.statistics import kendall
from record import benchmark_parser, save_record, without_folders


def build(entry: dict[str, Any], shape: dict[str, int], drop_path_rate: float) -> nn.Module:
    """The model for images of this shape, freshly initialised; stochastic depth is part of the recipe."""
    options = {"drop_path_rate": drop_path_rate, **entry.get("options", {})}
    if "timm" in entry:
        return build_timm(entry["timm"], **shape, **options)
    space = nasformer.get_space(entry["space"], **shape, **options)
    return space.build(space.arch(entry["arch"]))


def train_one(command: RetrainCommand, entry: dict[str, Any], seed: int, folder: Path | None) -> dict[str, Any]:
    """What a training came to; with a folder it can be stopped and goes on."""
    device = choose_device(command.device)
    command.seed = seed
    batches = load_batches(command, command.train, World(), device, command.img_size)
    size = int(command.img_size or next(iter(batches.evaluation("test", 1)))[0].shape[-1])
    shape = {"img_size": size, "in_chans": batches.in_chans, "num_classes": batches.num_classes}
    torch.manual_seed(seed)
    model = build(entry, shape, float(command.model.get("drop_path_rate", 0.0))).to(device)
    start = time.perf_counter()
    loss = train_model(model, batches, command.train, folder=folder, seed=seed, quiet=True)
    seconds = time.perf_counter() - start
    params = sum(parameter.numel() for parameter in model.parameters())
    found = {"params": params, **evaluate(model, batches), "loss": loss, "seconds": seconds}
    if folder:
        shutil.rmtree(folder)
    return found


def in_a_process(rest: list[str], name: str, seed: int) -> tuple[str, dict[str, Any]]:
    """Trains in a process of its own; a training that fails does not end the others."""
    words = [sys.executable, __file__, *rest, "--only", name, "--seed", str(seed)]
    done = subprocess.run(words, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    result = json.loads(lines[-1]) if done.returncode == 0 else {"failed": done.stderr[-2000:]}
    print(f"{name} seed {seed}: {json.dumps(result)}", flush=True)
    return name, {"seed": seed, **result}


def table(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    found = {}
    for name, runs in rows.items():
        sound = [run for run in runs if "accuracy" in run]
        accuracies = [run["accuracy"] for run in sound]
        if sound:
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            found[name] = {"params": sound[0]["params"], "accuracy": statistics.fmean(accuracies), "std": spread}
    return found


def agreement(models: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    """Whether winner and random archs rank alike by the accuracy they inherit and by that of their own training."""
    names = [name for name in summary if name.startswith(("winner", "random")) and "inherited" in models[name]]
    if len(names) < 3:
        return {}
    inherited = [models[name]["inherited"] for name in names]
    own = [summary[name]["accuracy"] for name in names]
    return {"kendall": kendall(inherited, own), "inherited": inherited, "own": own}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--models", required=True, help="JSON file of models by name")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--only", help="train this model alone, in this process")
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    args, rest = parser.parse_known_args()  # the rest are options of `nasformer retrain`: --config, --data ...
    models = json.loads(Path(args.models).read_text())
    if args.only:
        command = make_parser(find_command("retrain")).parse(rest).options
        folder = Path(f"{args.out}-{args.only}-{args.seed}".replace(" ", "-")) if args.out else None
        print(json.dumps(train_one(command, models[args.only], args.seed, folder)))
        return
    rows = known_rows(args.out, rest, models)
    wanted = product(range(args.seed, args.seed + args.seeds), models)
    left = [(seed, name) for seed, name in wanted if all(row["seed"] != seed for row in rows[name])]
    child = ["--models", args.models, *(["--out", args.out] if args.out else []), *rest]
    with ThreadPoolExecutor(args.jobs) as pool:
        for job in as_completed([pool.submit(in_a_process, child, name, seed) for seed, name in left]):
            name, row = job.result()
            rows[name] = sorted([*rows[name], row], key=lambda row: row["seed"])
            save(args, rest, models, rows)
    if any("failed" in row for runs in rows.values() for row in runs):
        sys.exit("a training failed; the same command tries it again")
    for name, row in sorted(table(rows).items(), key=lambda item: -item[1]["accuracy"]):
        print(f"{name:24} {row['params'] / 1e6:7.3f} M  {100 * row['accuracy']:6.2f} +- {100 * row['std']:.2f}")


def known_rows(out: str | None, rest: list[str], models: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What the record holds of these models, by the same recipe."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    record = json.loads(Path(out).read_text()) if out and Path(out).exists() else None
    if record and record["settings"]["rest"] == without_folders(rest):
        found = record["results"]
        for name in (name for name in models if found["models"].get(name) == models[name]):
            rows[name] = [row for row in found["runs"][name] if "failed" not in row]
    return rows


def save(
    args: argparse.Namespace, rest: list[str], models: dict[str, Any], rows: dict[str, list[dict[str, Any]]]
) -> None:
    summary = table(rows)
    found = {"summary": summary, "agreement": agreement(models, summary), "models": models, "runs": rows}
    save_record("same_recipe", {**vars(args), "rest": rest}, found, args.out, quiet=True)


if __name__ == "__main__":
    main()
