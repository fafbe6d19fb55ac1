"""Runs studies: a YAML file names commands for each variant and seed, and where their figures are; a record comes out.

python benchmarks/study/study.py benchmarks/study/scratch-cifar100.yaml --data SETS --out benchmarks/records --jobs 15
python benchmarks/study/study.py --queue benchmarks/queue.yaml --data SETS --out benchmarks/records --jobs 15 \
    --minutes 9 --archive study.tar.gz

    about: Does a search pay from scratch?
    data: cifar100.npz
    seeds: 3
    trainings: 5      # processes of a cell at a time
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
NAME/), {weights} (the folder --weights), {trainings} and the words of the variant; `outcome.py` has all keys. With
`--smoke` it all runs in minutes on a CPU: on a handful of images, random ones unless WORK/smoke/sets has others, for a
few steps and with one seed.

Cells (a variant with a seed) run side by side, in turn, `--jobs` processes at a time, on one GPU best under NVIDIA's
MPS. A queue has slices of several studies, which run in its order; those whose images or weights are not there are left
out. Before `--minutes` are over what runs is told to stop; the same command goes on: commands continue where they were
stopped, and steps that are done are not done again, even after `kill -9`. On another machine, where nothing but the
record is, a cell whose figures it has is left out, and one that was begun goes on by the files that the study keeps
(`keep`; in OUT/begun). So `--steps 2` can do on a CPU what needs no GPU: the first two steps alone. The record
OUT/study-NAME.json is written anew after each cell; WORK has the cells, the table and a figure. With `--executor ray`
cells are tasks on the workers of a cluster, with the folders at the same paths on every node.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import GRACE, STOPPED, Cell, contents
from nasformer.errors import UserError
from nasformer.results.verdict import Evidence
from nasformer.runs.options import ExecutorOptions
from nasformer.runs.pools import RayPool
from nasformer.search.run import Failed
from nasformer.utils.files import open_atomic, write_text
from nasformer.utils.schema import from_json, read_yaml
from outcome import Cells, Study, draw, evidence, read_study, summary, table
from record import save_record
from smoke import make_folder, make_set, make_weights

SAVE_EVERY = 10.0
"""Seconds between two looks at what was begun, which is saved so that a kill loses no more."""
Outcome = dict[str, Any] | Exception | None
"""Of a cell: its figures, what went wrong, or None where steps are left."""


def main() -> int:
    args = make_parser().parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: STOPPED.append(number))
    deadline = time.time() + 60 * args.minutes - GRACE
    if args.smoke:
        args.seeds, args.work = 1, args.work / "smoke"
        args.out = args.work / "records"
        args.data, args.weights = args.work / "sets", args.work / "weights"
    slices = read_queue(args.queue) if args.queue else [Slice(path, args.only or []) for path in args.studies]
    studies = {part.study: open_study(Path(part.study), args, deadline) for part in slices}
    failed = run_studies(slices, studies, args)
    for progress in studies.values():
        show(progress, args.work / progress.name)
    return 1 if failed else 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("studies", nargs="*", default=[], help="YAML files")
    what.add_argument("--queue", type=Path, help="a YAML file of slices, in the order in which they run")
    parser.add_argument("--only", nargs="*", help="these variants of the studies alone")
    parser.add_argument("--data", type=Path, default=Path("sets"), help="the folder of sets")
    parser.add_argument("--weights", type=Path, default=Path("weights"), help="the folder of pretrained weights")
    parser.add_argument("--work", type=Path, default=Path("study"), help="where cells are run")
    parser.add_argument("--out", type=Path, help="the folder of records")
    parser.add_argument("--archive", type=Path, help="write all records and logs of studies into this .tar.gz, too")
    parser.add_argument("--seeds", type=int, help="fewer or more than the study has")
    parser.add_argument("--steps", type=int, help="the first so many steps alone, such as those that need no GPU")
    parser.add_argument("--jobs", type=int, help="processes at a time; 1 by default, on a cluster as many as fit")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop before so many are over")
    parser.add_argument("--smoke", action="store_true", help="run everything on a few images, with one seed")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--ray-address")
    parser.add_argument("--cpus-per-trial", type=float, default=1.0, help="of a cell, on a cluster")
    parser.add_argument("--gpus-per-trial", type=float, default=0.0, help="of a cell, on a cluster")
    return parser


# Studies on their way


@dataclass(frozen=True)
class Slice:
    """A part of a study.

    Args:
        study: Its file; in a queue, from the folder of the queue.
        only: Its variants; none: all of them.
        gpu_minutes: What it takes on one H200, about.
    """

    study: str
    only: list[str] = field(default_factory=list)
    gpu_minutes: float = 0.0


def read_queue(path: Path) -> list[Slice]:
    slices = from_json(list[Slice], read_yaml(path)["slices"], path, remedy="mend the queue")  # type: ignore[arg-type]
    return [replace(part, study=str(path.parent / part.study)) for part in slices]


@dataclass
class Progress:
    """A study on its way: its cells, and the record of what is there."""

    name: str
    study: Study
    cells: list[Cell]
    record: Path | None
    done: dict[str, dict[str, Any]]
    begun: dict[str, dict[str, Any]]

    def is_done(self, cell: Cell) -> bool:
        """Whether its figures, by the same commands, are in the record."""
        return self.done.get(cell.name, {}).get("key") == cell.key

    @property
    def left(self) -> list[Cell]:
        return [cell for cell in self.cells if not self.is_done(cell)]

    @property
    def figures(self) -> Cells:
        rows: Cells = {}
        for cell in filter(self.is_done, self.cells):
            rows.setdefault(cell.variant, {})[cell.seed] = self.done[cell.name]["figures"]
        return rows

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

    def save_begun(self) -> bool:
        """Writes beside the record what cells that are not done yet go on by; whether that is news."""
        if not self.record:
            return False
        left, before = {cell.name for cell in self.left}, self.begun
        self.begun = before | {cell.name: begun for cell in self.left if (begun := cell.begun())}
        self.begun = {name: begun for name, begun in self.begun.items() if name in left or name not in self.done}
        if self.begun == before:
            return False
        if self.begun:
            write_text(begun_of(self.record), json.dumps(self.begun, indent=1) + "\n")
        else:
            begun_of(self.record).unlink(missing_ok=True)
        return True


def begun_of(record: Path) -> Path:
    return record.parent / "begun" / record.name


def open_study(path: Path, args: argparse.Namespace, deadline: float) -> Progress:
    study = read_study(path)
    work, name = args.work / path.stem, f"study-{path.stem}.json"
    record = args.out / name if args.out else None
    processes = min(study.trainings, args.jobs or 1) if args.executor == "local" else 1
    cells = []
    for variant in study.variants:
        words = fill_words(study, variant, args) | {"trainings": str(processes)}
        for seed in range(args.seeds or study.seeds):
            folder = work / (variant or "all").replace(" ", "-").replace("/", "-") / str(seed)
            cells.append(Cell(study, variant, seed, folder, words, deadline, processes, args.smoke, args.steps))
    done = contents(record)["results"]["cells"] if record and record.exists() else {}
    begun = contents(begun_of(record)) if record and begun_of(record).exists() else {}
    if args.smoke:
        make_weights(word for cell in cells for command in cell.commands() for word in command)
    for cell in cells:
        cell.resume(begun.get(cell.name, {}))
    return Progress(path.stem, study, cells, record, done, begun)


def fill_words(study: Study, variant: str, args: argparse.Namespace) -> dict[str, str]:
    """What is filled into the steps of a variant, with the paths of this machine."""
    own = {name: text.replace("{weights}", str(args.weights)) for name, text in study.words_of(variant).items()}
    words = {"weights": str(args.weights), "data": study.data, **own}
    return words | {name: find_data(words[name], args) for name in ("data", "pretrain") if name in words}


def find_data(name: str, args: argparse.Namespace) -> str:
    """A file or a folder (NAME/) in the folder of sets, or the name of a set that nasformer knows."""
    if not name.endswith((".npz", "/")):
        return name
    path: Path = args.data / name
    if args.smoke and not path.exists():
        make_folder(path) if name.endswith("/") else make_set(path)
    return str(path)


# Running


def run_studies(slices: Sequence[Slice], studies: dict[str, Progress], args: argparse.Namespace) -> bool:
    """Runs what is left of all slices in their order; whether a cell failed."""
    owners = {id(cell): progress for progress in studies.values() for cell in progress.cells}
    cells = runnable([cell for part in slices for cell in cells_of(part, studies[part.study])], args)
    settings, failed = {"jobs": args.jobs, "smoke": args.smoke}, False

    def save_begun() -> None:
        if [progress.name for progress in studies.values() if progress.save_begun()]:
            save_archive(args)

    for cell, outcome in run_cells(cells, args, save_begun):
        if isinstance(outcome, Exception):
            failed = True
            print(f"{cell.name} failed: {outcome}; see {cell.folder}/log.txt", flush=True)
        elif outcome is not None:
            owners[id(cell)].done[cell.name] = outcome
            owners[id(cell)].save(settings)
        save_archive(args)
    save_begun()
    return failed


def cells_of(part: Slice, progress: Progress) -> list[Cell]:
    if unknown := set(part.only) - progress.study.variants.keys():
        names = ", ".join(progress.study.variants)
        raise UserError(f"{part.study} has no variant {', '.join(unknown)}; it has: {names}")
    return [cell for cell in progress.left if not part.only or cell.variant in part.only]


def runnable(cells: Sequence[Cell], args: argparse.Namespace) -> list[Cell]:
    """Every cell once, without those whose images or weights are not on this machine."""
    once = list({id(cell): cell for cell in cells}.values())
    missing = {id(cell): cell.missing((args.data, args.weights)) for cell in once}
    if files := sorted({file for names in missing.values() for file in names}):
        if all(missing.values()):
            raise UserError(f"no {', '.join(files)}; make sets as docs/data.md says, or by benchmarks/study/unpack.py")
        print(f"without {', '.join(files)}, {sum(map(bool, missing.values()))} of {len(once)} cells wait", flush=True)
    return [cell for cell in once if not missing[id(cell)]]


def run_cells(
    cells: Sequence[Cell], args: argparse.Namespace, save_begun: Callable[[], None]
) -> Iterator[tuple[Cell, Outcome]]:
    """Each cell with its outcome: side by side on this machine, or on the workers of a cluster."""
    if args.executor == "local":
        yield from run_here(cells, args.jobs or 1, save_begun)
        return
    from ray import cloudpickle

    for module in (__name__, "cells", "outcome", "smoke"):  # files that are no package of the workers'
        cloudpickle.register_pickle_by_value(sys.modules[module])
    options = ExecutorOptions("ray", args.ray_address, args.cpus_per_trial, args.gpus_per_trial, args.jobs)
    with closing(RayPool(CellJob(), options)) as workers:
        for cell, outcome in zip(cells, workers.map(cells), strict=True):
            yield cell, RuntimeError(outcome.traceback) if isinstance(outcome, Failed) else outcome


def run_here(cells: Sequence[Cell], jobs: int, save_begun: Callable[[], None]) -> Iterator[tuple[Cell, Outcome]]:
    """Cells in turn, as soon as there is room for their processes; each one as it ends."""
    waiting, started = deque(cells), dict[Future[Outcome], Cell]()
    with ThreadPoolExecutor(jobs) as pool:
        while waiting or started:
            while waiting and sum(cell.processes for cell in started.values()) + waiting[0].processes <= jobs:
                cell = waiting.popleft()
                started[pool.submit(cell.run)] = cell
            done, _ = wait(started, SAVE_EVERY, FIRST_COMPLETED)
            for future in done:
                error = future.exception()
                yield started.pop(future), error if isinstance(error, Exception) else future.result()
            save_begun()


class CellJob:
    """What workers of a cluster do: whole cells."""

    def open(self, device: str) -> Callable[[Cell], dict[str, Any] | None]:
        return Cell.run


# What comes out


def save_archive(args: argparse.Namespace) -> None:
    """Writes the records, what cells go on by, and the logs into one file: from some machines few files come back."""
    if not args.archive:
        return
    records = [*args.out.glob("study-*.json"), *args.out.glob("begun/study-*.json")]
    files = {path: path.relative_to(args.out) for path in records}
    files |= {path: Path("logs") / path.relative_to(args.work) for path in args.work.glob("*/*/*/log.txt")}
    with open_atomic(args.archive) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for path, name in sorted(files.items()):
            archive.add(path, str(name))


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
