"""A first look at image files, at their headers only: are they images, all of one size, all grey?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nasformer.data.bad import BadImages
from nasformer.data.files import Files, FileSplits
from nasformer.data.read import BadImage, read_header
from nasformer.errors import UserError

LOOKS = 10_000  # files that are opened; of larger sets so many, evenly spread
THREADS = 16  # they wait for the disk


@dataclass(frozen=True)
class Survey:
    """What the files have in common; `size` is None where they differ or are not square."""

    size: int | None
    grey: bool
    looks: int


def survey(files: FileSplits, bad: BadImages, what: str) -> Survey:
    """Look at the files of all splits. Too many that are no images are refused here, before any work."""
    paths = [part.path(index) for part in files.parts() for index in _spread(part, len(files))]
    with ThreadPoolExecutor(THREADS) as pool:
        headers = list(pool.map(_header, paths))
    for path, header in zip(paths, headers, strict=True):
        if isinstance(header, str):
            bad.add(path, header)
    bad.check(len(paths), what)
    good = [header for header in headers if not isinstance(header, str)]
    if not good:
        raise UserError(f"{what}: none of the {len(paths)} images can be read; check the files")
    sizes = {side for size, _ in good for side in size}
    return Survey(sizes.pop() if len(sizes) == 1 else None, all(grey for _, grey in good), len(paths))


def _spread(part: Files, total: int) -> list[int]:
    count = len(part) if total <= LOOKS else -(-len(part) * LOOKS // total)
    return [place * len(part) // count for place in range(count)]


def _header(path: str) -> tuple[tuple[int, int], bool] | str:
    try:
        return read_header(path)
    except BadImage as error:
        return str(error)
