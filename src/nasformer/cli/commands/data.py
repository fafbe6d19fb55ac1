"""Commands about images: packing them into shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nasformer.cli.main import print_json
from nasformer.data.options import MAX_BAD
from nasformer.errors import UserError
from nasformer.utils.units import check_range


@dataclass
class PackCommand:
    """Scale images once and pack them into a few large files, which train faster."""

    positional: ClassVar = ("source",)
    main: ClassVar = ("to", "size", "quality", "check", "max_bad")
    example: ClassVar = "nasformer pack photos --size 256 --to photos-256"

    source: str = ""
    """a folder of images or a set by name, as --data takes it; with --check a folder of shards"""
    to: str = ""
    """the folder for the shards; what is there already of the same packing is kept"""
    size: int = 256
    """images whose short side is longer are scaled down to this many pixels: 256 for training at 224"""
    quality: int = 90
    """JPEG quality of images that are scaled; others keep their bytes"""
    shard_images: int = 10_000
    """images in a shard"""
    check: bool = False
    """read every byte of the shards in SOURCE and compare the checksums, instead of packing"""
    max_bad: float = MAX_BAD
    """share of the image files that may be unreadable: they are left out and listed in TO/bad_images.txt"""
    data_root: str = "data"
    """the folder that holds the sets with a name"""
    download: bool = False
    """download a set with a name that is not there"""

    def __post_init__(self) -> None:
        check_range(self, "size", 1, whole=True)
        check_range(self, "quality", 1, 100, whole=True)
        check_range(self, "shard_images", 1, whole=True)
        check_range(self, "max_bad", 0, 1)


def pack(options: PackCommand, as_json: bool) -> int | None:
    from pathlib import Path

    from nasformer.data.shards import INDEX, check_shards, describe, pack_files
    from nasformer.data.sources import list_files
    from nasformer.results.folder import check_output
    from nasformer.utils.schema import to_json

    if options.check:
        damaged = check_shards(Path(options.source))
        print_json({"damaged": damaged}) if as_json else print(
            "\n".join(damaged) or "all shards are as they were packed"
        )
        return 1 if damaged else None
    if not options.source or not options.to:
        raise UserError("say what to pack and where to: nasformer pack FOLDER --to SHARDS")
    folder = check_output(Path(options.to).expanduser(), INDEX, "--to")
    listing = list_files(options.source, options.data_root, options.download)
    settings = (options.size, options.quality, options.shard_images, options.max_bad)
    index = pack_files(listing, folder, *settings)
    print_json(to_json(index)) if as_json else print(describe(index, folder))
    return None
