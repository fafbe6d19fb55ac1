"""A figure as files: PNG for the page and for slides, SVG for print and for the page's plot that one can point at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nasformer.files import write_bytes

if TYPE_CHECKING:  # matplotlib takes a while to import
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure in both formats."""

    png: bytes
    svg: bytes


def save_picture(figure: Figure | None, path: Path, told: Mapping[str, str] | None = None) -> Picture | None:
    """Writes PATH.png and PATH.svg; without a figure, one from an earlier report goes, as it would no longer be true.

    Args:
        told: What the dots of the SVG tell, by their names (see `hover.py`).
    """
    targets = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    if figure is None:
        for target in targets:
            target.unlink(missing_ok=True)
        return None
    picture = render(figure, told)
    for target, content in zip(targets, (picture.png, picture.svg), strict=True):
        write_bytes(target, content)
    return picture


def render(figure: Figure, told: Mapping[str, str] | None = None) -> Picture:
    from nasformer.report.hover import tell
    from nasformer.report.style import png, svg

    pixels = png(figure)
    figure.set_layout_engine("none")  # it is laid out now, which takes as long as drawing it
    vector = svg(figure)
    return Picture(pixels, tell(vector, told) if told else vector)
