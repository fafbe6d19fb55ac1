"""Random kills of workers, nodes and drivers: the journal and the result must be those of a run without kills.

A cluster of a head and two nodes runs on this machine. Commands (search of a supernet, search by a proxy, evolve) run
on it one after the other; meanwhile a random worker, a node or the command itself is killed as nothing can prevent
(SIGKILL). A killed node is replaced, a killed command is started again. In the end every file that says what was found
must be the same, byte for byte, as that of one process without Ray.

    python benchmarks/chaos.py --kills 50
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import benchmark_parser, save_record

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
SPACE = ["--space", "autoformer-micro", "--patch-size", "4", "--threads", "1"]
DATA = ["--data", "digits", "--holdout", "0.2"]
SMALL = ["--search.population", "10", "--search.generations", "4"]
COMMANDS = {
    "search": ["search", *DATA, "--max-params", "200K", *SMALL, "--threads", "1"],
    "proxy": ["search", *SPACE, "--img-size", "16", "--proxy", "dss", "--search.strategy", "evolution", *SMALL],
    "evolve": [
        *("evolve", *SPACE, *DATA, "--train.iterations", "10", "--evolve.steps", "1", "--evolve.samples", "20"),
        *("--evolve.top", "4", "--train.checkpoint_seconds", "1"),
    ],
}
COMPARED = ("search/*.jsonl", "result.json", "evolution.json", "steps/*/search/*.jsonl")
NOT_COMPARED = "workers.jsonl"


def command(words: list[str], out: Path) -> list[str]:
    return [sys.executable, "-m", "nasformer.cli.main", *words, "--out", str(out)]


def found(folder: Path) -> dict[str, bytes]:
    """What a run found: journals and results."""
    paths = [path for pattern in COMPARED for path in folder.glob(pattern) if path.name != NOT_COMPARED]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@dataclass
class Chaos:
    """A cluster, and what was killed in it."""

    rng: random.Random
    wanted: int
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(2)]

    def run(self, words: list[str], out: Path, seconds: float) -> None:
        """Runs a command to its end, with up to two kills at random moments of each of its attempts."""
        words = [*words, "--executor", "ray", "--ray-address", self.cluster.address]
        while True:
            moments = sorted(self.rng.uniform(0.1, 1.0) * seconds for _ in range(2))
            start, log = time.monotonic(), open(out.with_suffix(".log"), "ab")  # noqa: SIM115
            with log, subprocess.Popen(command(words, out), env=ENVIRONMENT, stdout=log, stderr=log) as driver:
                while driver.poll() is None:
                    if moments and time.monotonic() - start > moments[0] and sum(self.kills.values()) < self.wanted:
                        moments.pop(0)
                        self.kill(driver)
                    time.sleep(0.05)
            if driver.returncode == 0:
                return
            if driver.returncode != -signal.SIGKILL:
                raise SystemExit(f"the command failed:\n{out.with_suffix('.log').read_text()[-2000:]}")

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        victims: dict[str, Callable[[Any], bool]] = {
            "worker": self.kill_worker,
            "node": self.kill_node,
            "driver": self.kill_driver,
        }
        name = self.rng.choice(list(victims))
        if victims[name](driver):
            self.kills[name] += 1
            print(f"  killed a {name}, {sum(self.kills.values())} of {self.wanted}", flush=True)

    def kill_worker(self, driver: Any) -> bool:
        raylets = {node.all_processes["raylet"][0].process.pid for node in self.nodes}
        workers = [pid for pid, parent, name in processes() if parent in raylets and name.startswith("ray::Host")]
        if workers:
            os.kill(self.rng.choice(workers), signal.SIGKILL)
        return bool(workers)

    def kill_node(self, driver: Any) -> bool:
        node = self.nodes.pop(self.rng.randrange(len(self.nodes)))
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1))
        return True

    def kill_driver(self, driver: subprocess.Popen[bytes]) -> bool:
        driver.kill()
        return driver.wait() == -signal.SIGKILL

    def close(self) -> None:
        self.cluster.shutdown()


def processes() -> list[tuple[int, int, str]]:
    """Process, parent and title of all that run."""
    rows = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            rows.append((int(path.name), parent, (path / "cmdline").read_text().split("\0")[0]))
        except OSError:  # it has ended meanwhile
            continue
    return rows


def prepare(folder: Path, names: list[str]) -> dict[str, dict[str, bytes]]:
    """Trains a supernet to search, and runs commands in one process each; the files that they find."""
    train = ["train", *SPACE, *DATA, "--train.iterations", "30"]
    subprocess.run(command(train, folder / "trained"), env=ENVIRONMENT, check=True, stderr=subprocess.DEVNULL)
    expected = {}
    for name in names:
        out = folder / f"{name}-expected"
        place(name, folder, out)
        subprocess.run(command(COMMANDS[name], out), env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
        expected[name] = found(out)
    return expected


def place(name: str, folder: Path, out: Path) -> None:
    """A run that searches a supernet has one."""
    if name == "search":
        shutil.copytree(folder / "trained", out)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=25.0, help="when a kill comes at the latest")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args()
    runs, same = 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        expected = prepare(folder, options.commands)
        chaos = Chaos(random.Random(options.seed), options.kills)
        try:
            while sum(chaos.kills.values()) < options.kills:
                name = options.commands[runs % len(options.commands)]
                out = folder / f"{name}-{runs}"
                place(name, folder, out)
                before = sum(chaos.kills.values())
                chaos.run(COMMANDS[name], out, options.seconds)
                runs, equal = runs + 1, found(out) == expected[name]
                same += equal
                hit = sum(chaos.kills.values()) - before
                print(f"{name}: {hit} kills, {'the same' if equal else 'ANOTHER'} answer", flush=True)
        finally:
            chaos.close()
    save_record("chaos", vars(options), {"kills": dict(chaos.kills), "runs": runs, "same": same}, options.out)
    if same < runs:
        raise SystemExit(f"{runs - same} of {runs} runs have another answer")


if __name__ == "__main__":
    main()
