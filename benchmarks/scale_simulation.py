"""How long does a search of 1,000 candidates take on 1 to 4,096 workers? A simulation, checked against real workers.

    python benchmarks/scale_simulation.py --out scale_simulation.json

What a worker and the driver do is simulated event by event: workers start, read the supernet, evaluate one candidate at
a time; the driver hands out tasks one after the other, each of which costs it some time. A generation waits for its
last candidate ("generations"), or the next one is bred when its last candidate has been handed out and half are known
("asynchronous", as `--asynchronous` does). Measured here first: the driver's time for a task, the time until a worker
is ready, and then whole searches with 1, 2 and 4 real workers whose tasks sleep as long as the simulated ones, which
says how far the simulation can be believed. Given, not measured here: the length of tasks, the share of slow ones and
the bandwidth.
"""

from __future__ import annotations

import heapq
import math
import random
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from nasformer.runs.options import ExecutorOptions
from nasformer.runs.pools import RayPool
from record import benchmark_parser, save_record

WORKERS = (1, 8, 64, 512, 4096)


@dataclass(frozen=True)
class Setting:
    """What a search and a cluster are like.

    Args:
        task: Mean seconds of a candidate; they spread by 20 %, as archs differ in size.
        slow: Share of tasks that take three times as long, on a worker that others disturb.
        driver: Seconds of the driver for a task.
        ready: Seconds until a worker has imported torch and opened its job, without the weights.
        weights: Bytes of the supernet and the held-out images.
        bandwidth: Bytes a second between nodes; nodes that have the weights pass them on.
        per_node: Workers of a node.
    """

    candidates: int = 1000
    population: int = 50
    task: float = 1.0
    slow: float = 0.02
    driver: float = 0.002
    ready: float = 8.0
    weights: float = 1.6e9
    bandwidth: float = 1.25e9
    per_node: int = 8

    def times(self) -> list[float]:
        rng = random.Random(0)
        return [
            self.task * rng.uniform(0.65, 1.35) * (3 if rng.random() < self.slow else 1) for _ in range(self.candidates)
        ]

    def start(self, worker: int) -> float:
        """When a worker is ready: nodes get the weights in rounds, in each of which twice as many have them."""
        node = worker // self.per_node
        return self.ready + math.ceil(math.log2(node + 1)) * self.weights / self.bandwidth


def simulate(setting: Setting, workers: int, asynchronous: bool = False) -> float:
    """Seconds from the start of the workers to the last result."""
    times, idle = (
        setting.times(),
        [(setting.start(worker), worker) for worker in range(min(workers, setting.candidates))],
    )
    heapq.heapify(idle)
    running: list[float] = []  # ends of tasks of the generations so far
    clock = 0.0  # of the driver
    for start in range(0, setting.candidates, setting.population):
        batch = times[start : start + setting.population]
        ends = []
        for seconds in batch:
            free, worker = heapq.heappop(idle)
            clock = max(clock, free) + setting.driver
            ends.append(clock + seconds)
            heapq.heappush(idle, (clock + seconds, worker))
        running += ends
        # What the driver waits for before it breeds again: all of the generation, or half of it.
        clock = max(clock, sorted(ends)[-1 if not asynchronous else (len(ends) - 1) // 2])
    return max(running)


@dataclass(frozen=True)
class Sleep:
    """A job whose tasks take as long as they are told."""

    def open(self, device: str) -> Callable[[float], None]:
        return time.sleep


def real(setting: Setting, workers: int) -> tuple[float, float]:
    """Seconds until real workers are ready, and of all generations after that."""
    options = ExecutorOptions("ray", max_concurrent_trials=workers)
    times = setting.times()
    with closing(RayPool(Sleep(), options)) as pool:
        start = time.perf_counter()
        while f"({workers} workers" not in pool.status:
            list(pool.map([0.0] * workers))
        ready, start = time.perf_counter() - start, time.perf_counter()
        for first in range(0, setting.candidates, setting.population):
            list(pool.map(times[first : first + setting.population]))
        return ready, time.perf_counter() - start


def driver_time(tasks: int = 400) -> float:
    """Seconds of the driver for a task, when four workers have nothing to do but answer."""
    with closing(RayPool(Sleep(), ExecutorOptions("ray", max_concurrent_trials=4))) as pool:
        while "(4 workers" not in pool.status:
            list(pool.map([0.0] * 4))
        start = time.perf_counter()
        list(pool.map([0.0] * tasks))
        return (time.perf_counter() - start) / tasks


def check(setting: Setting, driver: float) -> dict[str, Any]:
    """Simulated and real seconds of a short search, without the start."""
    short = replace(setting, candidates=60, population=20, task=0.3, driver=driver, ready=0.0, weights=0.0)
    rows = {}
    for workers in (1, 2, 4):
        ready, seconds = real(short, workers)
        simulated = simulate(short, workers)
        rows[str(workers)] = {"ready": ready, "real": seconds, "simulated": simulated, "ratio": seconds / simulated}
    return rows


def table(setting: Setting) -> dict[str, Any]:
    rows = {}
    for workers in WORKERS:
        seconds = {"generations": simulate(setting, workers), "asynchronous": simulate(setting, workers, True)}
        large = replace(setting, population=500)
        rows[str(workers)] = {**seconds, "generations of 500": simulate(large, workers)}
    return rows


def main() -> None:
    parser = benchmark_parser(__doc__)
    options = parser.parse_args()
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    driver = driver_time()
    checked = check(Setting(), driver)
    ray.shutdown()
    measured = replace(Setting(), driver=driver, ready=checked["1"]["ready"])
    tables = {f"tasks of {task:g} s": table(replace(measured, task=task)) for task in (0.24, 1.2, 10.0)}
    results = {"driver_seconds": driver, "ready_seconds": measured.ready, "check": checked, **tables}
    save_record("scale_simulation", vars(options), results, options.out)


if __name__ == "__main__":
    main()
