"""A plot inside the page as SVG whose dots tell what they are: a pointer, a finger or the Tab key shows it.

Each dot is a link to itself that holds its text as a title, so that plain SVG viewers show it as well; the page's one
script makes a box of it. `report.html#candidate-12` opens with that candidate's box.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nasformer.report.contents import Model, Run
from nasformer.report.labels import figure_of, in_a_row, label
from nasformer.search.problem import Candidate
from nasformer.utils.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


HOVER = "score_vs_cost"
"""The figure that the page shows this way."""

DOT = b'<a class="dot"'

ROOM = 1_000_000
"""Characters for architectures in a page; those of the best candidates go first."""

SCRIPT = """
for (const figure of document.querySelectorAll(".hover")) {
  const box = figure.querySelector(".told");
  const show = dot => {
    figure.querySelectorAll(".lit").forEach(other => other.classList.remove("lit"));
    box.hidden = !dot;
    if (!dot) return;
    const title = dot.querySelector("title");
    if (title) { dot.dataset.words = title.textContent; title.remove(); }
    dot.classList.add("lit");
    box.textContent = dot.dataset.words;
    const at = dot.getBoundingClientRect(), frame = figure.getBoundingClientRect();
    const left = at.left + at.width / 2 - frame.left, right = left > frame.width / 2;
    box.style.left = right ? "" : left + 14 + "px";
    box.style.right = right ? frame.width - left + 14 + "px" : "";
    box.style.maxWidth = (right ? left : frame.width - left) - 20 + "px";
    box.style.top = Math.max(0, at.bottom - frame.top + 8) + "px";
  };
  const dotOf = event => event.target.closest && event.target.closest(".dot");
  const asked = () => location.hash && figure.querySelector("[id='" + CSS.escape(location.hash.slice(1)) + "']");
  figure.addEventListener("pointerover", event => { if (dotOf(event)) show(dotOf(event)); });
  figure.addEventListener("pointerleave", () => show(asked()));
  figure.addEventListener("focusin", event => show(dotOf(event)));
  figure.addEventListener("click", event => {
    if (!dotOf(event)) return;
    event.preventDefault();  // a jump would move the plot away from the pointer
    history.replaceState(null, "", dotOf(event).getAttribute("href"));
  });
  addEventListener("hashchange", () => show(asked()));
  if (asked()) show(asked());
}
"""

DIGEST = f"sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}"
"""What a page's policy allows to run: this script and nothing else."""

STYLE = """
.hover { position: relative; overflow: visible; }
.hover svg { display: block; width: 100%; height: auto; background: #fff; border-radius: .4rem; margin: 0 0 .6rem; }
.dot { cursor: pointer; outline: none; scroll-margin-top: 45vh; }
.dot.lit use, .dot.lit path { stroke: #1f2933 !important; stroke-width: 2 !important; stroke-opacity: 1 !important; }
.told { position: absolute; z-index: 1; background: var(--card); color: var(--ink); border: 1px solid var(--soft);
  border-radius: .5rem; padding: .5rem .8rem; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere;
  pointer-events: none; box-shadow: 0 .2rem .8rem rgb(0 0 0 / 25%); }
.told[hidden] { display: none; }
"""


def dots(run: Run) -> dict[str, str]:
    """What each dot of `score_vs_cost` says, by its name."""
    told, room = {f"model-{place}": model_in_words(model) for place, model in enumerate(run.models)}, ROOM
    scores = {one.id: one.scores.get(run.score, math.nan) for one in run.candidates}
    known = (one for one in run.candidates if math.isfinite(scores[one.id]))
    for candidate in sorted(known, key=lambda one: -scores[one.id]):
        arch = arch_in_lines(candidate.arch.to_dict())
        room -= len(arch)
        told[f"candidate-{candidate.id}"] = candidate_in_words(
            candidate, arch if room >= 0 else "its arch: candidates.csv"
        )
    return told


def model_in_words(model: Model) -> str:
    return "\n".join(part for part in (model.name, _scores(model.scores), arch_in_lines(model.arch)) if part)


def candidate_in_words(candidate: Candidate, arch: str = "") -> str:
    parents = in_a_row([f"#{parent}" for parent in candidate.parents]) if candidate.parents else ""
    head = f"#{candidate.id} · generation {candidate.generation} · {candidate.origin}{' of ' * bool(parents)}{parents}"
    return f"{head}\n{_scores(candidate.scores)}\n{arch or arch_in_lines(candidate.arch.to_dict())}"


def _scores(scores: Mapping[str, float]) -> str:
    shown = {name: value for name, value in scores.items() if not name.startswith("position_")}
    return " · ".join(f"{label(name)} {figure_of(name, value)}" for name, value in shown.items())


def arch_in_lines(arch: Mapping[str, Any]) -> str:
    """An arch, a line for each of its fields.

    >>> print(arch_in_lines({"embed_dim": 48, "num_heads": [2, 3]}))
    embed_dim: 48
    num_heads: [2, 3]
    """
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in arch.items())


def tell(picture: bytes, told: Mapping[str, str]) -> bytes:
    """An SVG of matplotlib's, in which links to `#NAME` have what is told of that name as their title."""
    named: set[str] = set()

    def dot(link: re.Match[str]) -> str:
        name = link[1]
        own = "" if name in named else f' id="{name}"'  # there once, though each cost has a panel
        named.add(name)
        return f'<a class="dot"{own} xlink:href="#{name}"><title>{escape(printable(told.get(name, "")))}</title>'

    return re.sub(r'<a xlink:href="#([\w-]+)"[^>]*>', dot, picture.decode()).encode()


def printable(text: str) -> str:
    """Without what XML cannot hold, such as a NUL."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def inline(picture: bytes) -> str:
    """An SVG for the inside of a page: without what stands before it, and without names of other places."""
    text = picture.decode()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r">\s+<", "><", text)  # a third of the size, where there are thousands of dots
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", text).replace("xlink:href=", "href=")


# ----------------------------------------------------------------------------------------------------------------------
# A figure as files: PNG for the page and for slides, SVG for print and for the page's plot that one can point at.
# ----------------------------------------------------------------------------------------------------------------------


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
    pass
    from nasformer.utils.figures import png, svg

    pixels = png(figure)
    figure.set_layout_engine("none")  # it is laid out now, which takes as long as drawing it
    vector = svg(figure)
    return Picture(pixels, tell(vector, told) if told else vector)
