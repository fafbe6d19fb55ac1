"""Unpacks a set of images from mosaics of JPEG into an .npz file that `--data` reads.

python benchmarks/study/unpack.py cifar100_jpegq95.npz --to sets/cifar100.npz

A packed set is small enough to be carried to another machine: for every split S it has `S_data`, the bytes of its
mosaics one after the other, `S_off`, where each begins and ends, and `S_y`, the classes; `tile` is the height and
width of an image, `rows` and `cols` how many a mosaic has, `classes` their names. A split `val` becomes the hold-out
where there are test images, too.
"""

from __future__ import annotations

import argparse
import io
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from nasformer.utils.files import open_atomic

Split = tuple[np.ndarray, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", type=Path)
    parser.add_argument("--to", type=Path, required=True, help="the .npz file to write")
    args = parser.parse_args()
    with np.load(args.packed, allow_pickle=False) as packed:
        splits = {name[:-5]: unpack(packed, name[:-5]) for name in packed.files if name.endswith("_data")}
        classes = packed["classes"]
    if "val" in splits and "test" in splits:
        splits["holdout"] = splits.pop("val")
    elif "val" in splits:
        splits["test"] = splits.pop("val")
    arrays = {"classes": classes}
    for name, (images, labels) in splits.items():
        arrays |= {f"{name}_images": images, f"{name}_labels": labels}
        print(f"{name}: {len(images):,} images of {images.shape[1]} px", flush=True)
    with open_atomic(args.to) as file:
        np.savez(file, **arrays)


def unpack(packed: np.lib.npyio.NpzFile, split: str) -> Split:
    """The images of a split (number, height, width, channels) and their classes."""
    (height, width), rows, columns = packed["tile"], int(packed["rows"]), int(packed["cols"])
    data, ends, labels = packed[f"{split}_data"], packed[f"{split}_off"], packed[f"{split}_y"].astype(np.int64)
    parts = []
    for begin, end in pairwise(ends):
        mosaic = np.asarray(Image.open(io.BytesIO(data[begin:end].tobytes())).convert("RGB"))
        tiles = mosaic.reshape(rows, height, columns, width, 3).transpose(0, 2, 1, 3, 4)
        parts.append(tiles.reshape(rows * columns, height, width, 3))
    return np.concatenate(parts)[: len(labels)], labels


if __name__ == "__main__":
    main()
