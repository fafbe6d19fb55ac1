"""The command that draws where the heads of a block look: attention."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nasformer.cli.tables import print_json, print_table
from nasformer.data.options import DataOptions
from nasformer.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from nasformer.attention.maps import AttentionMaps, Query
    from nasformer.data.loaders import BatchSource
    from nasformer.families.base import Backbone
    from nasformer.tasks.classify import ModelInput

MOST = 3
"""Pairs of heads that are printed."""


@dataclass
class AttentionCommand(DataOptions):
    """Draw where the heads of a block look, and how alike they are."""

    positional: ClassVar = ("model", "image")
    main: ClassVar = ("block", "query", "data", "index", "out", "device")
    example: ClassVar = "nasformer attention runs/digits --data digits --block 2 --out attention.png"

    model: str = ""
    """a run folder with a model in it, or a folder that `nasformer extract` or `nasformer export` wrote"""
    image: str = ""
    """an image file; or leave it out and name a test image with --data and --index"""
    block: str = ""
    """3.7 is block 7 of stage 3; 7 is the seventh block of a net without stages; left out: says which there are"""
    query: str = ""
    """who looks: row,column on the block's map, where 0,0 is top left, or cls, the class token; none: the centre"""
    data: str = ""
    """a data set whose test image --index is shown: digits, an .npz file, a folder of images or a set by name"""
    index: int = 0
    """which test image of --data, counted from 0"""
    out: str = "attention.png"
    """the picture to write: .png or .svg"""


def attention(options: AttentionCommand, as_json: bool) -> None:
    from nasformer.attention.maps import attention_blocks, attention_maps
    from nasformer.families.storage import load_model
    from nasformer.runs.single import model_folder
    from nasformer.tasks.classify import image_input
    from nasformer.utils.device import choose_device

    check(options)
    folder, query = model_folder(Path(options.model)), parse_query(options.query)
    model = load_model(folder).to(choose_device(options.device))
    if not options.block:
        blocks = ", ".join(attention_blocks(model))
        raise UserError(f"say which block: --block BLOCK; with attention there are: {blocks}")
    shown = from_data(options, folder, model) if options.data else image_input(Path(options.image), folder, model)
    maps = attention_maps(model, shown.x, options.block)
    query = query or (maps.grid[0] // 2, maps.grid[1] // 2)
    draw(maps, shown, query, options)
    print_json(summary(maps, query, options.out)) if as_json else print_maps(maps, options.out)


def check(options: AttentionCommand) -> None:
    if not options.model or bool(options.image) == bool(options.data):
        raise UserError("say which model and image: nasformer attention MODEL IMAGE, or MODEL --data DATA --index N")
    if Path(options.out).suffix not in (".png", ".svg"):
        raise UserError(f"--out is {options.out!r}; give a file that ends in .png or .svg")


def parse_query(text: str) -> Query | None:
    """Who looks, or None for nobody in particular.

    >>> parse_query("0,3"), parse_query("cls"), parse_query("")
    ((0, 3), 'cls', None)
    """
    if text in ("", "cls"):
        return "cls" if text else None
    found = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", text)
    if not found:
        raise UserError(f"--query is {text!r}; give row,column on the block's map, such as 0,0, or cls")
    return int(found[1]), int(found[2])


def from_data(options: AttentionCommand, folder: Path, model: Backbone) -> ModelInput:
    """A test image of a data set."""
    from nasformer.results.folder import RunFolder
    from nasformer.runs.data import UNTRAINED, load_batches, normalize_as
    from nasformer.tasks.classify import ModelInput
    from nasformer.train.distributed import World
    from nasformer.utils.device import choose_device

    device, sizes = choose_device(options.device), (model.options["img_size"], model.options["in_chans"])
    batches = load_batches(options, UNTRAINED, World(), device, *sizes)
    normalize_as(batches, RunFolder(folder))
    return ModelInput(nth_test_image(batches, options.index), batches.mean, batches.std)


def nth_test_image(batches: BatchSource, index: int) -> Tensor:
    count = 0
    for x, _ in batches.evaluation("test", 64):
        if 0 <= index - count < len(x):
            return x[index - count :][:1]
        count += len(x)
    raise UserError(f"--index is {index}; there are {count} test images, so give 0 to {count - 1}")


def draw(maps: AttentionMaps, shown: ModelInput, query: Query, options: AttentionCommand) -> None:
    from nasformer.attention.maps import attention_figure
    from nasformer.utils.figures import png, svg
    from nasformer.utils.files import write_bytes

    out = Path(options.out)
    figure = attention_figure(maps, shown.pixels, query)
    write_bytes(out, (svg if out.suffix == ".svg" else png)(figure))


def summary(maps: AttentionMaps, query: Query, out: str) -> dict[str, Any]:
    """All that is printed and drawn, as plain values."""
    columns = zip(maps.heads, *(x.tolist() for x in (maps.entropy(), maps.distance(), maps.elsewhere())), strict=True)
    names = ("head", "entropy_bits", "distance", "elsewhere")
    return {
        "block": maps.block,
        "grid": list(maps.grid),
        "query": query if query == "cls" else list(query),
        "heads": [dict(zip(names, (str(head), *values), strict=True)) for head, *values in columns],
        "similarity": maps.similarity().tolist(),
        "mean_similarity": maps.mean_similarity(),
        "picture": out,
    }


def print_maps(maps: AttentionMaps, out: str) -> None:
    rows, columns = maps.grid
    outside = maps.elsewhere().tolist()
    headings = ["head", "entropy (bits)", "distance"]
    if max(outside) > 0:
        headings.append("on the class token" if maps.class_token else "on padding")
    cells = [
        [str(head), f"{entropy:.2f}", f"{distance:.2f}", f"{share:.1%}"][: len(headings)]
        for head, entropy, distance, share in zip(
            maps.heads, maps.entropy().tolist(), maps.distance().tolist(), outside, strict=True
        )
    ]
    print_table(f"heads of block {maps.block}, on a map of {rows} x {columns}", headings, cells)
    pairs = maps.pairs()
    if pairs:
        most = ", ".join(f"{pair.first} and {pair.second} ({pair.similarity:.2f})" for pair in pairs[:MOST])
        print(f"similarity of heads: {maps.mean_similarity():.2f} on average; most alike: {most}")
    print(f"picture: {out}")
