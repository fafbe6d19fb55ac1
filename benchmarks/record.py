"""A benchmark's record: figures with the day, the versions and the hardware they were measured on."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from nasformer.utils.files import write_text

# torch is imported where it is needed: benchmarks that measure their own memory would count it.


def benchmark_parser(doc: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark, which its docstring describes; every benchmark can write its record with `--out`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write the record here as JSON")
    return parser


def hardware() -> dict[str, Any]:
    import torch

    from nasformer.latency.measure import processor_name

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"gpu": gpu, "cpu": processor_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def without_folders(value: Any) -> Any:
    """Paths as bare names: where a file lay on one machine is nobody else's business."""
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return re.sub(r"(?<![\w.])/\S*/", "", value) if isinstance(value, str) else value


def save_record(
    name: str, settings: dict[str, Any], results: dict[str, Any], out: str | None, quiet: bool = False
) -> None:
    """Writes a record of settings and results to a file, and prints it unless asked to be quiet."""
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    record = {
        "benchmark": name,
        "date": datetime.now(UTC).date().isoformat(),
        "settings": {name: without_folders(value) for name, value in settings.items()},
        "versions": versions,
        "hardware": hardware(),
        "results": results,
    }
    text = json.dumps(record, indent=1)
    if not quiet:
        print(text)
    if out:
        write_text(Path(out), text + "\n")


Measured = dict[str, Any]


def add_side_by_side(parser: argparse.ArgumentParser) -> None:
    """Options of `run_side_by_side`, and of how its trainings run."""
    parser.add_argument("--nets", nargs="+", required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each net, from --seed on")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, each a process of its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)


def run_side_by_side(
    name: str,
    args: argparse.Namespace,
    measure: Callable[[str, int], Measured],
    summarise: Callable[[dict[str, list[Measured]]], Measured],
) -> None:
    """Measures every net with every seed, several in processes of their own, and writes the record anew after each.

    Args:
        measure: What is measured of a net with a seed.
        summarise: Results from what was measured of each net, seed by seed.
    """
    if args.child:
        print(json.dumps(measure(args.nets[0], args.seed)), flush=True)
        return
    by_net: dict[str, dict[int, Measured]] = {net: {} for net in args.nets}
    settings = {key: value for key, value in vars(args).items() if key not in ("seed", "child")}
    with ThreadPoolExecutor(args.jobs) as pool:
        pairs = [(net, args.seed + number) for number in range(args.seeds) for net in args.nets]
        running = {pool.submit(run_child if args.jobs > 1 else measure, *pair): pair for pair in pairs}
        for done in as_completed(running):
            net, seed = running[done]
            if error := done.exception():  # of one training; the others are worth their record
                print(f"{net}, seed {seed} failed: {error}", flush=True)
                continue
            by_net[net][seed] = done.result()
            print(f"{net}, seed {seed}: {shown(by_net[net][seed])}", flush=True)
            ready = {net: [seeds[seed] for seed in sorted(seeds)] for net, seeds in by_net.items() if seeds}
            save_record(name, settings, summarise(ready), args.out, quiet=True)


def run_child(net: str, seed: int) -> Measured:
    words = [sys.executable, *sys.argv, "--nets", net, "--seed", str(seed), "--child"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{net}, seed {seed}: {done.stderr[-2000:]}")
    measured: Measured = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def shown(measured: Measured) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in measured.items() if isinstance(value, float | int))


def mean_and_spread(measured: list[Measured], name: str) -> Measured:
    """The mean over the seeds and, from two on, the standard deviation."""
    values = [results[name] for results in measured]
    return {name: fmean(values)} | ({f"{name}_std": stdev(values)} if len(values) > 1 else {})
