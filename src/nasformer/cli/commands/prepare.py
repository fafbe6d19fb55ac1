"""Commands that prepare for runs: pack (images into shards) and profile (this machine)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nasformer.cli.main import print_json
from nasformer.data.options import MAX_BAD
from nasformer.errors import UserError
from nasformer.models.registry import SpaceOptions
from nasformer.tasks.options import TaskOptions
from nasformer.utils.tables import print_table
from nasformer.utils.units import OptionGroup, check_range, check_seed

if TYPE_CHECKING:
    from nasformer.latency.profile import Profile
    from nasformer.models.space import Space


@dataclass
class PackCommand(OptionGroup):
    """Scale images once and pack them into a few large files, which train faster."""

    positional = ("source",)
    main = ("to", "size", "quality", "check", "max_bad")
    example = "nasformer pack photos --size 256 --to photos-256"

    source: str = ""
    """a folder of images or a set by name, as --data takes it; with --check a folder of shards"""
    to: str = ""
    """the folder for the shards; finished shards of the same packing are kept"""
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


# Measuring this machine


ROWS = 12  # kinds of layers in the printed table
MOST = 2**20  # images, threads, nets and rounds: more would never end
MEASURED = ("backend", "batch_size", "threads", "nets", "holdout", "rounds", "seed")
"""Options that are passed on to `make_profile`."""


@dataclass
class ProfileCommand(TaskOptions, SpaceOptions):
    """Measure this machine: the latency and memory of a space's layers, and how well they predict whole nets."""

    main = ("space", "data", "img_size", "device", "backend", "batch_size", "threads", "out")
    example = "nasformer profile --space autoformer-tiny --device cpu"

    data: str = ""
    """images to measure it for: their size, channels and classes are taken, as a run on them does"""
    data_root: str = "data"
    """the folder that holds the sets with a name"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    backend: Literal["eager", "compile", "onnxruntime"] = "eager"
    """how nets are run; compile: layer by layer, one graph for each kind"""
    batch_size: int = 1
    """images at a time"""
    threads: int = 1
    """threads of the CPU; one is timed by its processor time, the steadiest on a busy machine"""
    nets: int = 24
    """nets that fill the table and calibrate the sum of their layers"""
    holdout: int = 30
    """other nets, on which the prediction is tested"""
    rounds: int = 7
    """how often each net is visited; more for a busy machine"""
    seed: int = 0
    """seed of everything random"""
    out: str = ""
    """the file to write; none: profiles/SPACE-SIZEpx-DEVICE-BACKEND-bBATCH-tTHREADS.json"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in {"batch_size": 1, "threads": 1, "nets": 3, "holdout": 1, "rounds": 1}.items():
            check_range(self, name, least, MOST)
        check_seed(self)


def profile(options: ProfileCommand, as_json: bool) -> None:
    from nasformer.latency.measure import describe_machine
    from nasformer.latency.profile import make_profile
    from nasformer.latency.search import check_replaceable, suggested_latency, unused_path
    from nasformer.utils.device import choose_device

    space, device = space_for_images(options), choose_device(options.device)
    settings = (device.type, options.backend, options.batch_size, options.threads)
    path = Path(options.out) if options.out else unused_path(space, *settings)
    check_replaceable(path, space, describe_machine(device, options.backend), *settings)
    measured = make_profile(space, device=device, **{name: getattr(options, name) for name in MEASURED})
    measured.save(path)
    warn_if_inaccurate(measured)
    if as_json:
        return print_json({"file": str(path), **measured.to_dict()})
    print_profile(measured)
    latency = suggested_latency(measured) or "TIME"
    return print(f"profile: {path}   next: nasformer search --max-latency {latency} ... (add --latency-profile {path})")


def warn_if_inaccurate(measured: Profile) -> None:
    from nasformer.latency.profile import MAX_ERROR
    from nasformer.utils.progress import say

    if measured.is_inaccurate:
        say(
            f"warning: on other nets the median error is {measured.holdout.median_error:.0%}, more than "
            f"{MAX_ERROR:.0%}: budgets use this profile only where --latency-profile names it. Measure again when the "
            "machine is quieter, with --threads 1 or more --rounds"
        )


def space_for_images(options: ProfileCommand) -> Space:
    """The space of the command; with --data, for images and classes like those of the data."""
    from nasformer.tasks.registry import space_for

    space = space_for(options.chosen_space(), options)
    if not options.data:
        return space
    if options.task != "classify":
        raise UserError(f"with --task {options.task}, give --img-size and --num-classes in place of --data")
    from nasformer.data.files import ImageFiles
    from nasformer.data.sources import open_data

    sizes = {"img_size": options.img_size, "in_chans": options.in_chans, "usual_size": space.full_options["img_size"]}
    images = open_data(options.data, root=options.data_root, holdout=0, quiet=True, **sizes)
    if isinstance(images, ImageFiles):
        size, channels, classes = images.size, images.channels, images.splits.classes
    else:
        size, channels, classes = images.img_size, images.in_chans, images.classes
    return space.with_options(img_size=size, in_chans=channels, num_classes=len(classes))


def print_profile(measured: Profile) -> None:
    setup, test = measured.setup, measured.holdout
    where = measured.machine.gpu or measured.machine.processor
    how = f"{setup.backend}, batch {setup.batch_size}, {setup.precision}"
    title = f"{measured.space} on {where}: {how}, threads {setup.threads}, {setup.clock}"
    names = short_names(list(measured.table))
    longest = sorted(measured.table.items(), key=lambda item: -item[1].ms)[:ROWS]
    rows = []
    for key, entry in longest:
        peak = "–" if entry.bytes is None else f"{entry.bytes / 1e6:.2f}"
        rows.append([names[key], f"{entry.ms:.4g}", f"{entry.low:.4g} to {entry.high:.4g}", str(entry.runs), peak])
    print_table(title, ("layer", "median ms", "quartiles", "runs", "peak MB"), rows)
    low, middle, high = setup.pace_ms
    print(f"{len(measured.table)} kinds of layers measured in running nets, {len(longest)} shown")
    print(f"pace: {middle:.4g} ms, half of the time between {low:.4g} and {high:.4g}")
    print(f"a net takes {measured.overhead_ms:.3g} ms + {measured.scale:.4f} x the sum of its layers")
    if test.nets:
        print(
            f"hold-out of {test.nets} other nets ({test.fastest_ms:.4g} to {test.slowest_ms:.4g} ms): "
            f"median error {test.median_error:.1%}, 90th percentile {test.p90_error:.1%}; "
            f"{test.from_table:.0%} of their layers are in the table"
        )
    if test.median_memory_error is not None:
        print(f"peak memory: median error {test.median_memory_error:.1%}, 90th {test.p90_memory_error:.1%}")


def short_names(keys: list[str]) -> dict[str, str]:
    """The keys of a table without the options that all layers of a class share.

    >>> short_names(["Norm(dim=8, eps=1)", "Norm(dim=16, eps=1)"])
    {'Norm(dim=8, eps=1)': 'Norm dim=8', 'Norm(dim=16, eps=1)': 'Norm dim=16'}
    """
    parsed = {
        key: (key.partition("(")[0], re.findall(r"\w+=(?:\([^)]*\)|[^,()]+)", key.partition("(")[2])) for key in keys
    }
    short = {}
    for key, (layer, options) in parsed.items():
        others = [set(choices) for name, choices in parsed.values() if name == layer]
        common = set.intersection(*others) if len(others) > 1 else set()
        short[key] = " ".join([layer, *(option for option in options if option not in common)])
    return short
