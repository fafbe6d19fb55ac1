"""Reports as tests read them: what a page holds, and which figures a run has, without writing all of them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from nasformer.report.page import page
from nasformer.report.plots import FIGURES
from nasformer.results.contents import read_run
from nasformer.utils.files import write_text

PNG = "data:image/png;base64,"
HOSTILE = "<script>alert(1)</script>"


class Page(HTMLParser):
    """What a page holds: tags, attributes and text."""

    VOID = frozenset({"meta", "img", "wbr"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def words_of(run: Path) -> Page:
    """The page of a run without its figures, which take a while."""
    write_text(run / "words.html", page(read_run(run), {}))
    return Page(run / "words.html")


def drawable(run: Path) -> set[str]:
    """The names of the figures that can be drawn of a run; coarse and without a layout, which takes less time."""
    contents = read_run(run)
    figures = {name: figure for name, draw in FIGURES.items() if (figure := draw(contents))}
    for figure in figures.values():
        figure.set_layout_engine("none")
        figure.set_dpi(30)
        figure.canvas.draw()
    return set(figures)


def plots(run: Path) -> set[str]:
    """The names of the figures that a report has written."""
    return {path.stem for path in (run / "plots").glob("*")}
