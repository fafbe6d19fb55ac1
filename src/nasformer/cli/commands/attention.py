"""The command that shows where the heads of a block look: attention."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nasformer.attention.maps import AttentionMaps, Query, attention_maps
from nasformer.cli.commands.common import print_json
from nasformer.cli.config import AttentionCommand
from nasformer.data.decode import BadImage, check_channels, read_image
from nasformer.data.files import channels_first
from nasformer.data.images import normalise
from nasformer.data.loaders import BatchSource
from nasformer.data.preprocessing import resize_and_crop
from nasformer.errors import UserError
from nasformer.families.base import Backbone
from nasformer.families.storage import facts_in, load_model, preprocessing_of
from nasformer.runs import folder as folders
from nasformer.train.distributed import World
from nasformer.utils.device import choose_device
from nasformer.utils.files import write_bytes

MOST = 3
"""Pairs of heads that are printed."""


class Shown(NamedTuple):
    """One image as the model sees it, [1, channels, rows, columns], and how it was normalised."""

    x: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def pixels(self) -> Tensor:
        """[channels, rows, columns] in 0..1."""
        mean, std = torch.tensor([self.mean, self.std]).view(2, -1, 1, 1)
        return (self.x[0].cpu() * std + mean).clamp(0, 1)


def attention(command: AttentionCommand, as_json: bool) -> None:
    check(command)
    folder, query = folders.model_folder(Path(command.model)), parse_query(command.query)
    model = load_model(folder).to(choose_device(command.device))
    shown = from_data(command, folder, model) if command.data else from_file(Path(command.image), folder, model)
    maps = attention_maps(model, shown.x, command.block)
    query = query or (maps.grid[0] // 2, maps.grid[1] // 2)
    draw(maps, shown, query, command)
    print_json(summary(maps, query, command.out)) if as_json else print_maps(maps, command.out)


def check(command: AttentionCommand) -> None:
    if not command.model or bool(command.image) == bool(command.data):
        raise UserError("say which model and image: nasformer attention MODEL IMAGE, or MODEL --data DATA --index N")
    if not command.block:
        raise UserError("say which block: --block 3.7 is block 7 of stage 3, --block 7 the seventh without stages")
    if Path(command.out).suffix not in (".png", ".svg"):
        raise UserError(f"--out is {command.out!r}; give a file that ends in .png or .svg")


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


def from_file(path: Path, folder: Path, model: Backbone) -> Shown:
    """An image file, prepared as evaluation does."""
    channels = model.options["in_chans"]
    known = preprocessing_of(model.options, facts_in(folder))
    if known.mean is None or known.std is None:
        raise UserError(f"{folder} does not say how images are normalised; show one of its data: --data DATA --index N")
    if not path.is_file():
        raise UserError(f"there is no image {path}; check the path")
    try:
        image = read_image(str(path), check_channels(channels))
    except BadImage as error:
        raise UserError(f"{path} cannot be read as an image ({error}); give a PNG or JPEG file") from None
    view = resize_and_crop(image, known.img_size, known.crop_pct, known.interpolation)
    pixels = torch.from_numpy(channels_first(view))[None]
    mean, std = (folders.for_channels(values, channels) for values in (known.mean, known.std))
    return Shown(normalise(pixels, mean, std), mean, std)


def from_data(command: AttentionCommand, folder: Path, model: Backbone) -> Shown:
    """A test image of a data set."""
    device, sizes = choose_device(command.device), (model.options["img_size"], model.options["in_chans"])
    batches = folders.load_batches(command, folders.UNTRAINED, World(), device, *sizes)
    folders.normalise_as(batches, folder)
    return Shown(nth_test_image(batches, command.index), batches.mean, batches.std)


def nth_test_image(batches: BatchSource, index: int) -> Tensor:
    count = 0
    for x, _ in batches.evaluation("test", 64):
        if 0 <= index - count < len(x):
            return x[index - count :][:1]
        count += len(x)
    raise UserError(f"--index is {index}; there are {count} test images, so give 0 to {count - 1}")


def draw(maps: AttentionMaps, shown: Shown, query: Query, command: AttentionCommand) -> None:
    from nasformer.attention.figure import attention_figure
    from nasformer.utils.figures import png, svg

    out = Path(command.out)
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
    from rich.console import Console
    from rich.table import Table

    rows, columns = maps.grid
    table = Table(title=f"heads of block {maps.block}, on a map of {rows} x {columns}")
    elsewhere = "on the class token" if maps.class_token else "on padding"
    padded = bool(maps.elsewhere().max() > 0)
    for column in ("head", "entropy (bits)", "distance", *([elsewhere] if padded else [])):
        table.add_column(column, justify="right")
    for head, entropy, distance, share in zip(
        maps.heads, maps.entropy().tolist(), maps.distance().tolist(), maps.elsewhere().tolist(), strict=True
    ):
        table.add_row(str(head), f"{entropy:.2f}", f"{distance:.2f}", *([f"{share:.1%}"] if padded else []))
    Console().print(table)
    pairs = maps.pairs()
    if pairs:
        most = ", ".join(f"{pair.first} and {pair.second} ({pair.similarity:.2f})" for pair in pairs[:MOST])
        print(f"similarity of heads: {maps.mean_similarity():.2f} on average; most alike: {most}")
    print(f"picture: {out}")
