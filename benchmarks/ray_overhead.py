"""What Ray costs and gains: tasks of a known length, proxies on CPU cores, and workers that share a GPU.

    python benchmarks/ray_overhead.py                    # overhead of short tasks; 2 workers against 1 by a CPU proxy
    python benchmarks/ray_overhead.py --device cuda      # 4 workers on one GPU against 1, at the scale of CIFAR

All times are of a batch of tasks on workers that are ready, and ratios are against a baseline of the same run. How long
workers take to get ready is said beside them: it is paid once a search. CPU seconds are those of this process and all
that it has started, Ray's own among them: unlike a speed-up, they mean something on a busy machine as well.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import torch

import nasformer
from nasformer.data.images import Data, ImageSet
from nasformer.data.loaders import Batches
from nasformer.data.options import AugmentOptions
from nasformer.proxies.scoring import Scorer
from nasformer.runs.options import ExecutorOptions
from nasformer.runs.pools import RayPool
from nasformer.runs.search import ProxyJob, SubnetJob
from nasformer.supernet.supernet import Supernet
from nasformer.train.evaluate import SubnetEvaluator
from record import benchmark_parser, save_record


@dataclass(frozen=True)
class Sleep:
    """A job whose tasks take a known time and no CPU."""

    seconds: float

    def open(self, device: str) -> Callable[[Any], None]:
        return lambda task: time.sleep(self.seconds)


def cpu_seconds() -> float:
    """CPU time of this process and all that it has started, directly or not."""
    import psutil  # comes with Ray

    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


def timed(job: Any, tasks: Sequence[Any], workers: int, repeats: int, gpus: float = 0.0) -> dict[str, Any]:
    """Seconds until workers are ready, and of each repeat of a batch, with the CPU seconds of all processes."""
    options = ExecutorOptions("ray", cpus_per_trial=1, gpus_per_trial=gpus, max_concurrent_trials=workers)
    with closing(RayPool(job, options)) as pool:
        start = time.perf_counter()
        while f"({workers} workers" not in pool.status:
            list(pool.map(tasks[:workers]))
        ready, batches = time.perf_counter() - start, [clocked(lambda: list(pool.map(tasks))) for _ in range(repeats)]
    seconds, cpu = ([*values] for values in zip(*batches, strict=True))
    return {"workers": workers, "ready": ready, "seconds": seconds, "best": min(seconds), "cpu": cpu}


def clocked(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that some work takes, and CPU seconds of all processes."""
    cpu, start = cpu_seconds(), time.perf_counter()
    work()
    return time.perf_counter() - start, cpu_seconds() - cpu


def overhead(options: Any) -> dict[str, Any]:
    """Tasks of fixed lengths on two workers, against their sum over two."""
    found = {}
    for length in (1.0, 0.1, 0.01):
        count = max(10, int(options.tasks * min(1.0, length)))
        job, ideal = Sleep(length), count * length / 2
        measured = timed(job, list(range(count)), 2, options.repeats)
        found[f"{length:g} s"] = {
            **measured,
            "tasks": count,
            "overhead": statistics.median(measured["seconds"]) / ideal - 1,
        }
    return found


def proxy_speedup(options: Any) -> dict[str, Any]:
    """DSS of AutoFormer-T nets in this process, on one worker and on two, each with one thread."""
    space = nasformer.get_space("autoformer-tiny")
    job = ProxyJob(Scorer(space, "dss"))
    chunks = [[space.sample(number), space.sample(number + 1)] for number in range(0, 2 * options.chunks, 2)]
    torch.set_num_threads(1)
    score = job.open("cpu")
    alone = [clocked(lambda: [score(chunk) for chunk in chunks]) for _ in range(options.repeats)]
    one, two = (timed(job, chunks, workers, options.repeats) for workers in (1, 2))
    return {
        "in-process": {"seconds": [seconds for seconds, _ in alone], "cpu": [cpu for _, cpu in alone]},
        **{"one": one, "two": two, "speedup": one["best"] / two["best"]},
        "cpu_overhead": {
            name: min(measured["cpu"]) / min(cpu for _, cpu in alone) - 1
            for name, measured in (("one", one), ("two", two))
        },
    }


def sharing(options: Any) -> dict[str, Any]:
    """Archs of a supernet on 10,000 held-out images of 32 px: in this process, on one worker and on four that share."""
    space = nasformer.get_space("autoformer-tiny", img_size=32, patch_size=4, num_classes=10)
    device = torch.device(options.device)
    supernet = Supernet(space).to(device)
    images = ImageSet(
        torch.randint(256, (options.images, 3, 32, 32), dtype=torch.uint8), torch.arange(options.images) % 10
    )
    data = Data("noise", images, images, images, [str(number) for number in range(10)], (0.5,) * 3, (0.25,) * 3)
    batches = Batches(data, AugmentOptions(), 128, device=device)
    subnets = SubnetEvaluator(supernet, batches)
    archs = [[space.sample(number)] for number in range(options.archs)]
    subnets(archs[0][0])
    start = time.perf_counter()
    for (arch,) in archs:
        subnets(arch)
    alone = time.perf_counter() - start
    job, gpu = SubnetJob.of(subnets, 2048), device.type == "cuda"
    results = {
        f"{workers} workers": timed(job, archs, workers, options.repeats, 1 / workers if gpu else 0.0)
        for workers in (1, 4)
    }
    return {"in-process": alone, **results, "speedup": results["1 workers"]["best"] / results["4 workers"]["best"]}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20, help="of 1 s")
    parser.add_argument("--chunks", type=int, default=8, help="of two nets, for the proxy")
    parser.add_argument("--archs", type=int, default=64, help="for the GPU")
    parser.add_argument("--images", type=int, default=10_000, help="for the GPU")
    parser.add_argument("--part", choices=("overhead", "proxy", "sharing"), action="append")
    options = parser.parse_args()
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    gpus = {"num_gpus": 1} if options.device == "cuda" else {}
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error", **gpus)
    parts = {"overhead": overhead, "proxy": proxy_speedup, "sharing": sharing}
    chosen = options.part or (["sharing"] if options.device == "cuda" else ["overhead", "proxy"])
    results = {name: parts[name](options) for name in chosen}
    save_record("ray_overhead", vars(options), results, options.out)


if __name__ == "__main__":
    main()
