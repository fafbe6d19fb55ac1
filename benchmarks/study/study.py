"""Runs studies: a YAML file names commands for each variant and seed, and where their figures are; a record comes out.

python benchmarks/study/study.py benchmarks/study/scratch-cifar100.yaml --data SETS --out benchmarks/records \
    --jobs 3 --trainings 5 --minutes 9

    about: Does a search pay from scratch?
    data: cifar100.npz
    seeds: 3
    gpu_minutes: 12
    variants: {AutoFormer-T: {config: autoformer-cifar100, budget: 6M}, ...}
    steps:            # of every variant and seed, in turn
      - nasformer run --config {config} --data {data} --max-params {budget} --seed {seed} --out {work}/run
      - ...
    figures:          # a file of {work} and the keys in its JSON; the mean over all that match
      searched: trained.json results summary winner accuracy
      random: trained.json results summary 'random *' accuracy
    compare: [[searched, random]]

Filled in are {seed}, {work} (a folder of the seed), {data} and {pretrain} (files in the folder --data, or folders,
NAME/), {weights} (the folder --weights), {trainings} (how many to do side by side in a step) and the words of the
variant; `outcome.py` has all keys. With `--smoke` it all runs in minutes on a CPU: on a handful of random images, for a
few steps and with one seed.

`--jobs` cells (a variant with a seed) run at a time, on one GPU side by side, best under NVIDIA's MPS. Before
`--minutes` are over what runs is told to stop; the same command goes on: commands continue where they were stopped,
and steps that are done are not done again. On another machine, where nothing but the record is, a cell whose figures
it has is left out, and one that was begun goes on by the files that the study keeps (`keep`; in OUT/begun). So
`--steps 2` can do on a CPU what needs no GPU: the first two steps alone. The record OUT/study-NAME.json is written anew
after each cell; WORK has the cells, the table and a figure. With `--executor ray` cells are tasks on the workers of a
cluster, with the folders at the same paths on every node.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from nasformer.errors import UserError
from nasformer.results.verdict import Evidence
from nasformer.runs.options import ExecutorOptions
from nasformer.runs.ray_pool import RayPool
from nasformer.search.run import Failed
from nasformer.utils.files import write_text
from outcome import Cells, Figures, Study, draw, evidence, read_study, summary, table
from record import save_record
from smoke import make_folder, make_set, make_weights, shortened

GRACE = 40.0
"""Seconds before the end of `--minutes` at which commands are told to stop, to write a checkpoint and the record."""
STOPPED: list[int] = []
"""Holds the signal by which this process was told to stop; a list, since workers are sent this module."""


class OutOfTime(Exception):
    """A cell is not finished; the next call goes on."""


@dataclass
class Cell:
    """A variant with a seed: its folder, and the commands that fill it.

    Args:
        words: What is filled into the steps.
        deadline: When to stop, in seconds since the epoch.
        first: How many of the steps to do; None: all.
    """

    study: Study
    variant: str
    seed: int
    folder: Path
    words: dict[str, str]
    deadline: float
    smoke: bool = False
    first: int | None = None

    @property
    def name(self) -> str:
        return f"{self.variant + ', ' if self.variant else ''}seed {self.seed}"

    @property
    def key(self) -> str:
        """What the figures depend on, whatever the machine: the words of the commands."""
        return digest("\n".join(map(self.anywhere, self.study.steps)))

    def anywhere(self, step: str) -> str:
        """A step without what differs between machines and calls: folders, and how much is done side by side."""
        return step.format_map(Open(self.study.words_of(self.variant) | {"seed": str(self.seed)}))

    def run(self) -> dict[str, Any] | None:
        """Does what is not done yet: figures, and seconds of each step, now or before; None where steps are left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        steps = zip(self.study.steps, self.commands(), strict=True)
        try:
            seconds = [self.step(*pair) for pair in islice(steps, self.first)]
        except OutOfTime:
            return None
        if len(seconds) < len(self.study.steps):
            return None
        return {"key": self.key, "seconds": seconds, "figures": self.figures(), "minutes": self.minutes(seconds)}

    def commands(self) -> Iterator[list[str]]:
        words = {**self.words, "seed": str(self.seed), "work": str(self.folder)}
        for step in self.study.steps:
            command = shlex.split(step.format(**words))
            yield shortened(command) if self.smoke else command

    def step(self, step: str, words: list[str]) -> float:
        """Runs a command unless it is done; the seconds that it took in all."""
        done, begun = (self.folder / f"{digest(self.anywhere(step))}.{state}" for state in ("done", "begun"))
        if done.exists():
            return float(done.read_text())
        before, start = float(begun.read_text()) if begun.exists() else 0.0, time.perf_counter()
        try:
            with (self.folder / "log.txt").open("a") as log:
                log.write(f"$ {shlex.join(words)}\n")
                log.flush()
                run_until(self.deadline, program(words), log)
        finally:
            seconds = before + time.perf_counter() - start
            begun.write_text(str(seconds))
        begun.rename(done)
        print(f"{self.name}: {seconds:.0f} s for {shlex.join(words[:2])}", flush=True)
        return seconds

    def begun(self) -> dict[str, Any]:
        """What another machine goes on by, once all that is kept is there: files, and seconds of the steps done."""
        needed = [self.folder / name for name in self.study.keep]
        if not needed or not all(path.exists() for path in needed):
            return {}
        paths = {*needed, *self.folder.glob("*.json")}
        files = {str(path.relative_to(self.folder)): contents(path) for path in sorted(paths)}
        seconds = {path.stem: float(path.read_text()) for path in sorted(self.folder.glob("*.done"))}
        return {"key": self.key, "seconds": seconds, "files": files}

    def go_on(self, begun: dict[str, Any]) -> None:
        """Takes over what another machine began, where this one has nothing and the commands are the same."""
        if begun.get("key") != self.key or list(self.folder.glob("*.done")):
            return
        for name, content in begun["files"].items():
            write_text(self.folder / name, json.dumps(content))
        for step, seconds in begun["seconds"].items():
            write_text(self.folder / f"{step}.done", str(seconds))

    def figures(self) -> Figures:
        """All figures; the optional ones where the files have them."""
        found = {name: self.values(place) for name, place in self.study.figures.items()}
        if missing := [name for name, values in found.items() if not values and name not in self.study.optional]:
            raise UserError(f"{self.folder} has no {missing[0]}: nothing at {self.study.figures[missing[0]]!r}")
        return {name: statistics.fmean(values) for name, values in found.items() if values}

    def values(self, place: str) -> list[float]:
        file, *keys = shlex.split(place.format(**self.words))
        path = self.folder / file
        return list(find(contents(path), keys)) if path.exists() else []

    def minutes(self, seconds: Sequence[float]) -> float | None:
        """What a user would spend on the searched net, by the first line of evidence that says so."""
        parts = next((entry["minutes"] for entry in self.study.evidence if "minutes" in entry), None)
        if parts is None:
            return None
        times = [seconds[part] if isinstance(part, int) else sum(self.values(part)) for part in parts]
        return sum(times) / 60


def contents(path: Path) -> Any:
    return json.loads(path.read_text())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Open(dict[str, str]):
    """Words of which those that are missing stay open."""

    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


def program(words: Sequence[str]) -> list[str]:
    """The command with this Python, in which nasformer need not be installed."""
    first = {"python": [sys.executable], "nasformer": [sys.executable, "-m", "nasformer.cli"]}
    return [*first.get(words[0], words[:1]), *words[1:]]


def run_until(deadline: float, words: Sequence[str], log: Any) -> None:
    """Runs a command; at the deadline, or when this process is told to stop, it ends with all that it started."""
    if STOPPED or time.time() >= deadline:
        raise OutOfTime
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}  # plugins of studies are beside them
    process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=found)
    while (status := waited(process, 0.5)) is None:
        if STOPPED or time.time() >= deadline:
            stop(process)
            raise OutOfTime
    if status:
        raise subprocess.CalledProcessError(status, list(words))


def waited(process: subprocess.Popen[Any], seconds: float) -> int | None:
    """The status of a process that ends within so many seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def stop(process: subprocess.Popen[Any]) -> None:
    """Asks the group of a process to end, and ends it after a while."""
    os.killpg(process.pid, signal.SIGTERM)
    if waited(process, 0.7 * GRACE) is None:
        os.killpg(process.pid, signal.SIGKILL)


class CellJob:
    """What workers of a cluster do: whole cells."""

    def open(self, device: str) -> Callable[[Cell], dict[str, Any] | None]:
        return Cell.run


def run_cells(
    cells: Sequence[Cell], jobs: int | None, options: ExecutorOptions
) -> Iterator[tuple[Cell, dict[str, Any] | Exception | None]]:
    """Each cell with its outcome or what went wrong: side by side on this machine, or on the workers of a cluster."""
    if options.executor == "local":
        with ThreadPoolExecutor(jobs or 1) as pool:
            running = {pool.submit(cell.run): cell for cell in cells}
            for done in as_completed(running):
                error = done.exception()
                yield running[done], error if isinstance(error, Exception) else done.result()
        return
    from ray import cloudpickle

    for module in (__name__, "outcome", "smoke"):  # files that are no package of the workers'
        cloudpickle.register_pickle_by_value(sys.modules[module])
    with closing(RayPool(CellJob(), options)) as workers:
        for cell, outcome in zip(cells, workers.map(cells), strict=True):
            yield cell, RuntimeError(outcome.traceback) if isinstance(outcome, Failed) else outcome


def find(tree: Any, keys: Sequence[str]) -> Iterator[float]:
    """All numbers under the keys, which may be patterns; those of a list are names of its items, or else positions.

    >>> list(find({"random 1": {"top1": 0.5}, "random 2": {"top1": 0.7}, "winner": {}}, ["random*", "top1"]))
    [0.5, 0.7]
    >>> list(find([{"name": "random", "top1": 0.5}, {"name": "smallest", "top1": 0.7}], ["random*", "top1"]))
    [0.5]
    """
    if not keys:
        if isinstance(tree, int | float):
            yield float(tree)
        return
    if isinstance(tree, list):
        tree = {item.get("name", at) if isinstance(item, dict) else at: item for at, item in enumerate(tree)}
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if fnmatch.fnmatchcase(str(key), keys[0]):
            yield from find(value, keys[1:])


@dataclass
class Progress:
    """A study on its way: its cells, and the record of what is there."""

    name: str
    study: Study
    cells: list[Cell]
    record: Path | None
    done: dict[str, dict[str, Any]]
    begun: dict[str, dict[str, Any]]

    @property
    def left(self) -> list[Cell]:
        """The cells whose figures, by the same commands, are not in the record."""
        return [cell for cell in self.cells if self.done.get(cell.name, {}).get("key") != cell.key]

    @property
    def figures(self) -> Cells:
        found: Cells = {}
        for cell in self.cells:
            if self.done.get(cell.name, {}).get("key") == cell.key:
                found.setdefault(cell.variant, {})[cell.seed] = self.done[cell.name]["figures"]
        return found

    def evidence(self) -> list[Evidence]:
        spent: dict[str, list[float]] = {}
        for cell in self.cells:
            if (minutes := self.done.get(cell.name, {}).get("minutes")) is not None:
                spent.setdefault(cell.variant, []).append(minutes)
        means = {variant: round(statistics.fmean(values), 1) for variant, values in spent.items()}
        return list(evidence(self.study, self.figures, means, self.record.name if self.record else ""))

    def save(self, settings: dict[str, Any]) -> None:
        if not self.record:
            return
        results = {
            "complete": not self.left,
            **summary(self.study, self.figures),
            "evidence": [asdict(item) for item in self.evidence()],
            "cells": self.done,
        }
        about = {"seeds": self.study.seeds, "study": asdict(self.study), **settings}
        save_record("study", about, results, str(self.record), quiet=True)

    def save_begun(self) -> None:
        """Writes beside the record what cells that are not done yet go on by."""
        if not self.record:
            return
        left = {cell.name for cell in self.left}
        self.begun |= {cell.name: begun for cell in self.cells if (begun := cell.begun())}
        self.begun = {name: begun for name, begun in self.begun.items() if name in left or name not in self.done}
        if self.begun:
            write_text(begun_of(self.record), json.dumps(self.begun, indent=1) + "\n")
        else:
            begun_of(self.record).unlink(missing_ok=True)


def begun_of(record: Path) -> Path:
    return record.parent / "begun" / record.name


def open_study(path: Path, args: argparse.Namespace, deadline: float) -> Progress:
    study = read_study(path)
    work = args.work / path.stem
    record = args.out / f"study-{path.stem}.json" if args.out else None
    cells = []
    for variant in study.variants:
        words = {"weights": str(args.weights), "trainings": str(args.trainings), "data": study.data}
        words |= {name: text.replace("{weights}", str(args.weights)) for name, text in study.words_of(variant).items()}
        words |= {name: find_data(words[name], args) for name in ("data", "pretrain") if name in words}
        for seed in range(args.seeds or study.seeds):
            folder = work / (variant or "all").replace(" ", "-").replace("/", "-") / str(seed)
            cells.append(Cell(study, variant, seed, folder, words, deadline, args.smoke, args.steps))
    done = contents(record)["results"]["cells"] if record and record.exists() else {}
    begun = contents(begun_of(record)) if record and begun_of(record).exists() else {}
    if unknown := set(args.only or ()) - study.variants.keys():
        raise UserError(f"{path} has no variant {', '.join(unknown)}; it has: {', '.join(study.variants)}")
    if args.smoke:
        make_weights(word for cell in cells for command in cell.commands() for word in command)
    for cell in cells:
        cell.go_on(begun.get(cell.name, {}))
    return Progress(path.stem, study, cells, record, done, begun)


def find_data(name: str, args: argparse.Namespace) -> str:
    """A file or a folder (NAME/) in the folder of sets, or the name of a set that nasformer knows."""
    if not name.endswith((".npz", "/")):
        return name
    path = args.data / name
    if args.smoke and not path.exists():
        make_folder(path) if name.endswith("/") else make_set(path)
    if not path.exists():
        raise UserError(f"{args.data} has no {name}; make it as docs/data.md says, or by benchmarks/study/unpack.py")
    return str(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=Path, help="YAML files")
    parser.add_argument("--data", type=Path, default=Path("sets"), help="the folder of .npz files")
    parser.add_argument("--weights", type=Path, default=Path("weights"), help="the folder of pretrained weights")
    parser.add_argument("--work", type=Path, default=Path("study"), help="where cells are run")
    parser.add_argument("--out", type=Path, help="the folder of records")
    parser.add_argument("--only", nargs="*", help="these variants alone")
    parser.add_argument("--seeds", type=int, help="fewer or more than the study has")
    parser.add_argument("--steps", type=int, help="the first so many steps alone, such as those that need no GPU")
    parser.add_argument("--jobs", type=int, help="cells at a time; 1 by default, on a cluster as many as fit")
    parser.add_argument("--trainings", type=int, default=1, help="trainings at a time within a cell")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop before so many are over")
    parser.add_argument("--smoke", action="store_true", help="run everything on a few random images, with one seed")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--ray-address")
    parser.add_argument("--cpus-per-trial", type=float, default=1.0, help="of a cell, on a cluster")
    parser.add_argument("--gpus-per-trial", type=float, default=0.0, help="of a cell, on a cluster")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: STOPPED.append(number))
    deadline = time.time() + 60 * args.minutes - GRACE
    if args.smoke:
        args.seeds, args.work = 1, args.work / "smoke"
        args.out = args.work / "records"
        args.data, args.weights = args.work / "sets", args.work / "weights"
    studies = [open_study(path, args, deadline) for path in args.studies]
    resources = args.ray_address, args.cpus_per_trial, args.gpus_per_trial, args.jobs
    failed = run_studies(studies, args, ExecutorOptions(args.executor, *resources))
    for progress in studies:
        show(progress, args.work / progress.name)
    return 1 if failed else 0


def run_studies(studies: Sequence[Progress], args: argparse.Namespace, options: ExecutorOptions) -> bool:
    """Runs what is left of all studies together; whether a cell failed."""
    left = [(cell, progress) for progress in studies for cell in progress.left]
    cells = [cell for cell, _ in left if not args.only or cell.variant in args.only]
    owners = {id(cell): progress for cell, progress in left}
    settings = {"jobs": args.jobs, "trainings": args.trainings, "smoke": args.smoke}
    failed = False
    for cell, outcome in run_cells(cells, args.jobs, options):
        if outcome is None:
            continue
        if isinstance(outcome, Exception):
            failed = True
            print(f"{cell.name} failed: {outcome}; see {cell.folder}/log.txt", flush=True)
            continue
        owners[id(cell)].done[cell.name] = outcome
        owners[id(cell)].save(settings)
    for progress in studies:
        progress.save_begun()
    return failed


def show(progress: Progress, work: Path) -> None:
    """The table of what is there, on the screen and with a figure beside the cells; and how much is left."""
    left, cells = progress.left, progress.figures
    print(f"\n{progress.name}: {len(progress.cells) - len(left)} of {len(progress.cells)} cells are done")
    if cells:
        text = table(progress.study, summary(progress.study, cells))
        print(text)
        write_text(work / "table.md", text + "\n")
        draw(progress.study, cells, work / "figure.png")
    if left:
        print(f"left: {', '.join(cell.name for cell in left)}; the same command goes on")


if __name__ == "__main__":
    sys.exit(main())
