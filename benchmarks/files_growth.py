"""Memory and time of a streamed set by the number of its files: beyond their names, neither should grow.

    python benchmarks/files_growth.py --counts 10000 100000 1000000 --out files_growth-cpu.json

A few small JPEGs stand under many names (hard links), a thousand in each class. Every count is opened in a process of
its own, as `--data FOLDER --stream true` does, and four batches are read. `memory` is the most that the process held
beyond what it held before the set was opened; `peak` while opening, `kept` at the end.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from record import benchmark_parser, save_record

LINKS = 50_000  # of one file: file systems have a limit
CLASS_SIZE = 1000


def link_images(folder: Path, count: int) -> int:
    """Makes a folder of so many image files; returns the bytes of their paths."""
    import numpy as np
    from PIL import Image

    total = 0
    for number in range(count):
        path = folder / "train" / f"class{number // CLASS_SIZE:04}" / f"photo{number:07}.jpg"
        if number % CLASS_SIZE == 0:
            path.parent.mkdir(parents=True)
        if number % LINKS == 0:
            original = folder / f"original{number // LINKS}"
            pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(original, "JPEG")
        os.link(original, path)
        total += len(os.fsencode(path))
    return total


def open_and_read(folder: str) -> dict[str, float]:
    """Opens the set as a stream and reads a few batches."""
    import torch

    from nasformer.data.loaders import Batches
    from nasformer.data.options import AugmentOptions
    from nasformer.data.sources import open_files
    from nasformer.data.streaming import stream_files

    torch.set_num_threads(1)
    before, start = memory_now(), time.perf_counter()
    files = open_files(folder, img_size=32)
    batches = Batches(stream_files(files, workers=1), AugmentOptions(), 256, 0, 0, 1, torch.device("cpu"))
    opened, peak = time.perf_counter() - start, memory_peak()
    feed = batches.train_batches()
    assert sum(len(labels) for _, labels in islice(feed, 4)) == 1024
    return {"seconds": opened, "peak": peak - before, "kept": memory_now() - before}


def memory_now() -> float:
    """MiB that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def memory_peak() -> float:
    """The most MiB that it has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        names = link_images(Path(folder), count)
        words = [sys.executable, __file__, "--open", folder]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return {"files": count, "names": names / 2**20, **json.loads(said.splitlines()[-1])}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--open", help="open this folder, and say what it took")
    args = parser.parse_args()
    if args.open:
        print(json.dumps(open_and_read(args.open)))
        return
    rows = []
    for count in args.counts:
        rows.append(measure(count))
        print(
            "{files:9,} files, names {names:.1f} MiB: {seconds:.1f} s, {peak:.0f} MiB, {kept:.0f} kept".format(
                **rows[-1]
            )
        )
    save_record("files_growth", {"counts": args.counts}, {"growth": rows}, args.out)


if __name__ == "__main__":
    main()
