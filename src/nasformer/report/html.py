"""HTML pages: one file with its style, script and figures inside, every text escaped, nothing loaded from elsewhere.

The policy of a page names its one script by digest: should a text ever slip through unescaped, it cannot run. The
script shows the tooltips of figures that stand in the page as SVG. Each dot in them is a link to itself with its
tooltip as title, so that plain SVG viewers show it as well; `report.html#candidate-12` opens with the tooltip of that
candidate.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.figure import Figure

from nasformer.report.style import DPI, format_setting, png, svg
from nasformer.utils.files import write_bytes
from nasformer.utils.tables import html_row

FOLDER = files("nasformer.report")
STYLE = FOLDER.joinpath("page.css").read_text(encoding="utf-8")
SCRIPT = FOLDER.joinpath("tooltips.js").read_text(encoding="utf-8")
DIGEST = f"sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}"
POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{DIGEST}'"
DOT = '<a class="dot"'
SCREEN = 80  # dots per inch at which notebooks show figures


def document(title: str, parts: Sequence[str]) -> str:
    """The whole page; empty parts are left out."""
    body = "\n".join(filter(None, parts))
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
    return text.encode("utf-8", "replace").decode()  # JSON may hold half a character, a file may not


def page_title(config: Mapping[str, Any], before: str = "") -> str:
    """The space, or the net to cut, and the data of a config, as a title.

    >>> page_title({"space": "autoformer-micro[embed_dim=16,24]", "data": "photos/birds"})
    'nasformer: autoformer-micro on photos/birds'
    """
    space = str(config.get("space") or config.get("from_") or "").partition("[")[0]
    words = " on ".join(filter(None, [space, str(config.get("data") or "")]))
    return f"nasformer: {before}{words}" if words else ""


def heading(title: str, **facts: Any) -> str:
    """The title of a page above facts on one line; those that are None or empty are left out."""
    words = " · ".join(f"{name}: {value}" for name, value in facts.items() if value not in (None, ""))
    return f"<h1>{escape(title)}</h1>\n<p>{escape(words)}</p>"


def tiles(numbers: Sequence[tuple[str, str]]) -> str:
    """Numbers in large letters, each with its name."""
    cells = [f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in numbers]
    return f'<div class="tiles">{"".join(cells)}</div>' if cells else ""


def note(text: str) -> str:
    return f'<p class="card note">{escape(text)}</p>' if text else ""


def folded(title: str, content: str) -> str:
    return f'<details class="card"><summary>{escape(title)}</summary>{content}</details>'


def settings_tables(config: Mapping[str, Any]) -> str:
    """The config, folded: single values in one table, each group of values in one of its own."""
    single = {name: value for name, value in config.items() if not isinstance(value, dict)}
    groups = {name: value for name, value in config.items() if isinstance(value, dict) and value}
    tables = {"config": single, **groups} if single else groups
    parts = [folded(name.replace("_", " ").capitalize(), pairs(values)) for name, values in tables.items()]
    return "\n".join(["<h2>Settings</h2>", *parts]) if parts else ""


def pairs(values: Mapping[str, Any]) -> str:
    rows = [html_row([str(name), format_setting(value)]) for name, value in values.items()]
    return f'<table class="text pairs"><tbody>{"".join(rows)}</tbody></table>'


# Figures: PNG for the page and for slides, SVG for print and for pages whose dots have tooltips


Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Picture:
    """A figure in both formats; notebooks show it."""

    png: bytes
    svg: bytes

    def __repr__(self) -> str:
        return f"Picture({len(self.png):,} bytes of PNG, {len(self.svg):,} of SVG)"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The pixels, and the width at which their letters have the size of text."""
        return self.png, {"width": round(int.from_bytes(self.png[16:20]) * SCREEN / DPI)}


def save_pictures(
    subject: Subject,
    drawings: Mapping[str, Callable[[Subject], Figure | None]],
    folder: Path,
    tooltips: Mapping[str, Mapping[str, str]],
) -> dict[str, Picture]:
    """Draws a run, an evolution or a comparison into the folder; returns those that exist, by name.

    Args:
        tooltips: Those of a figure, by its name.
    """
    saved = {name: save_picture(draw(subject), folder / name, tooltips.get(name)) for name, draw in drawings.items()}
    return {name: picture for name, picture in saved.items() if picture}


def save_picture(figure: Figure | None, path: Path, tooltips: Mapping[str, str] | None = None) -> Picture | None:
    """Writes PATH.png and PATH.svg; without a figure, those of an earlier report are removed.

    Args:
        tooltips: By name; the figure's dots have `#NAME` as url.
    """
    targets = [path.with_name(f"{path.name}.{suffix}") for suffix in ("png", "svg")]
    if figure is None:
        for target in targets:
            target.unlink(missing_ok=True)
        return None
    picture = draw_picture(figure, tooltips or {})
    write_bytes(targets[0], picture.png)
    write_bytes(targets[1], picture.svg)
    return picture


def draw_picture(figure: Figure, tooltips: Mapping[str, str]) -> Picture:
    pixels = png(figure)
    figure.set_layout_engine("none")  # it is laid out now, which takes as long as drawing it
    return Picture(pixels, with_tooltips(svg(figure), tooltips))


def with_tooltips(image: bytes, tooltips: Mapping[str, str]) -> bytes:
    """An SVG of matplotlib's in which links to `#NAME` have the tooltip of that name as title."""
    seen: set[str] = set()

    def dot(link: re.Match[str]) -> str:
        name = link[1]
        anchor = "" if name in seen else f' id="{name}"'  # only once, though each cost has a panel
        seen.add(name)
        return f'{DOT}{anchor} xlink:href="#{name}"><title>{escape(printable(tooltips.get(name, "")))}</title>'

    return re.sub(r'<a xlink:href="#([\w-]+)"[^>]*>', dot, image.decode()).encode() if tooltips else image


def printable(text: str) -> str:
    """Text without characters that XML cannot hold, such as NUL."""
    if text.replace("\n", " ").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def figures(captions: Mapping[str, tuple[str, str]], pictures: Mapping[str, Picture]) -> list[str]:
    """The figures in the order of their titles and captions."""
    return [figure(*words, pictures[name]) for name, words in captions.items() if name in pictures]


def figure(title: str, caption: str, picture: Picture) -> str:
    """A figure with its words; one with tooltips as SVG, others as images."""
    title, caption, vector = escape(title), escape(caption), picture.svg.decode()
    if DOT in vector:
        shown, kind = f'{inline(vector)}<div class="tooltip" role="status" hidden></div>', " hover"
    else:
        source = f"data:image/png;base64,{b64encode(picture.png).decode()}"
        shown, kind = f'<img src="{source}" alt="{title}. {caption}">', ""
    return f'<h2>{title}</h2>\n<figure class="card{kind}">{shown}<figcaption>{caption}</figcaption></figure>'


def inline(image: str) -> str:
    """An SVG to embed in a page, without its preamble, metadata and namespaces."""
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", image[image.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r">\s+<", "><", text)  # a third of the size, where there are thousands of dots
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", text).replace("xlink:href=", "href=")
