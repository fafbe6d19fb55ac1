"""The report in a real browser: Chromium without a window, on a copy of the page as a user has it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from PIL import Image

from nasformer.report.compare import compare_runs, runs_table
from nasformer.report.html import DIGEST, document
from nasformer.report.page import LiveReport, models_table, serve, write_report
from nasformer.report.plots import write_confusion
from nasformer.search.problem import ModelResult
from nasformer.train.evaluate import Confusion
from nasformer.utils.files import append_json, write_json

from .fake import edit, write_run
from .fake_evolution import write_evolution

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

QUIET = ("no-first-run", "disable-background-networking", "disable-component-update", "disable-sync", "disable-gpu")
HOSTILE = "</title></script><script>document.title = 'taken over'</script>"


WIDTHS = (390, 1280)
PROBE = """
for (const details of document.querySelectorAll("details")) details.open = true;
const dot = document.querySelector("#model-0, #value-0-0-2");
if (dot) dot.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
addEventListener("load", () => {
  const wide = [...document.querySelectorAll("main, main *:not(svg *)")].filter(element => {
    const box = element.getBoundingClientRect();
    const scrolls = element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display != "inline";
    return scrolls || box.left < -1 || box.right > innerWidth + 1;
  });
  const tooltip = document.querySelector(".tooltip:not([hidden])");
  const active = document.querySelector(".dot.active");
  const paper = getComputedStyle(document.body).backgroundColor;
  const seen = {width: innerWidth, paper, wide: wide.map(element => element.outerHTML.slice(0, 200)),
    tooltip: tooltip && tooltip.textContent, active: active && active.id};
  parent.postMessage([new URL(location).searchParams.get("page"), seen], "*");
});
"""
"""Opens all that is folded, points at a dot, and tells what is wider than the page."""
LISTEN = """
const messages = [];
addEventListener("message", event => {
  messages.push(event.data);
  document.querySelector("#seen").textContent = JSON.stringify(messages);
});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run in which every text of the user's is hostile."""
    run = tmp_path_factory.mktemp("browser") / "digits"
    write_run(run)
    edit(run / "config.json", data=HOSTILE, classes=[HOSTILE])
    edit(run / "result.json", note=HOSTILE)
    return write_report(run)


def browse(page: Path, *options: str, fragment: str = "") -> tuple[str, str]:
    return visit(f"{page.as_uri()}{fragment}", page.parent / "profile", *options)


def visit(address: str, profile: Path, *options: str) -> tuple[str, str]:
    """What the browser prints, and what its console says."""
    words = [str(CHROMIUM), "--headless", "--no-sandbox", *(f"--{name}" for name in QUIET), "--enable-logging=stderr"]
    words += [f"--user-data-dir={profile}", *options, address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@contextmanager
def serving(run: Path, seconds: int) -> Iterator[int]:
    """The port at which a run is watched."""
    with serve(run, port=0, seconds=seconds) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def probe(folder: Path, pages: dict[str, Path], scheme: str = "light") -> dict[str, list[Any]]:
    """What the probe sees in each page at all widths, by the page's name; frames, since windows have a least width."""
    frames = []
    for name, path in pages.items():
        text = path.read_text().replace(DIGEST, "unsafe-inline")
        (folder / f"{name}.html").write_text(text.replace("</body>", f"<script>{PROBE}</script></body>"))
        style = "height: 600px; border: 0; width"
        frames += [f'<iframe src="{name}.html?page={name}" style="{style}: {width}px"></iframe>' for width in WIDTHS]
    (folder / "frames.html").write_text(f'<pre id="seen"></pre><script>{LISTEN}</script>{"".join(frames)}')
    preferred = f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"
    dom, console = browse(folder / "frames.html", "--dump-dom", preferred)
    assert console == ""
    (told,) = re.findall(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    found: dict[str, list[Any]] = {name: [] for name in pages}
    for name, seen in json.loads(html.unescape(told)):
        found[name].append(seen)
    return found


def test_a_link_to_a_candidate_opens_with_its_architecture(page: Path) -> None:
    dom, console = browse(page, "--dump-dom", fragment="#candidate-3")
    assert console == ""
    (tooltip,) = re.findall(r'<div class="tooltip"[^>]*>(.*?)</div>', dom, re.DOTALL)
    assert html.unescape(tooltip).startswith("#3 · generation 0 · random\n")
    assert '"num_heads":' in html.unescape(tooltip)
    assert "<title>nasformer: autoformer-micro on &lt;/title&gt;&lt;/script&gt;" in dom  # nobody took over


def test_the_page_can_be_seen(page: Path) -> None:
    shot = page.with_name("shot.png")
    _, console = browse(page, f"--screenshot={shot}", "--window-size=1100,1400", "--hide-scrollbars")
    assert console == ""
    with Image.open(shot) as picture:
        assert picture.size == (1100, 1400)
        assert len(picture.convert("L").getcolors() or []) > 50


PAPER = {"light": "rgb(245, 247, 249)", "dark": "rgb(17, 22, 28)"}


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_pointers_show_tooltips_and_nothing_is_wider_than_the_page(scheme: str, page: Path, tmp_path: Path) -> None:
    """Of a run, of a search by many scores, of an evolution, runs and classes with long names."""
    content = write_evolution(tmp_path / "evolution", "autoformer-micro", 1)
    content["steps"][0]["space"] = HOSTILE * 3
    write_json(tmp_path / "evolution" / "evolution.json", content)
    scores = {f"a_score_{number}": 1 / 3 for number in range(8)}
    scores |= {"params": 5_717_416, "macs": 1_299_000_000}
    many = [ModelResult(name, {}, scores) for name in ("winner", "random")]
    (tmp_path / "scores.html").write_text(document("scores", [models_table(many)]))
    runs = [copytree(page.parent, tmp_path / "runs" / f"a_run_with_quite_a_long_name_{k}") for k in range(4)]
    for number, run in enumerate(runs):
        edit(run / "config.json", seed=number)
    comparison = compare_runs(runs)
    tables = [models_table(comparison.winners()), runs_table(comparison, comparison.differences())]
    (tmp_path / "compare.html").write_text(document("runs", tables))
    pages = {"run": page, "evolution": write_report(tmp_path / "evolution")}
    names = [f"a class with quite a long name {HOSTILE}", "a_name_without_any_space_" * 3, "cat"]
    write_confusion(Confusion(torch.eye(3, dtype=torch.int64) + 1, 1.0, names), tmp_path, data=HOSTILE)
    pages |= {name: tmp_path / f"{name}.html" for name in ("scores", "compare", "evaluation")}
    seen = probe(tmp_path, pages, scheme)
    for name, found in seen.items():
        assert {one["paper"] for one in found} == {PAPER[scheme]}, name
        assert sorted(one["width"] for one in found) == list(WIDTHS), name
        assert [one["wide"] for one in found] == [[], []], name
    for one in seen["run"]:
        assert one["tooltip"].startswith("winner\n")
        assert "embed_dim: " in one["tooltip"]
        assert one["active"] == "model-0"
    for one in seen["evolution"]:
        assert one["tooltip"].startswith("space A · embed_dim = 64\nE-T error ")


@pytest.mark.slow
def test_a_watched_run_is_shown_again_when_it_goes_on(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate comes after the first visit; from another name, as of a page of the web, nothing is to be seen."""
    run = copytree(page.parent, tmp_path / "run")
    draw, shown = LiveReport.html, []

    def draw_and_go_on(report: LiveReport) -> str:
        shown.append(draw(report))
        report.seconds = 60  # longer than the browser waits
        append_json(run / "search" / "journal.jsonl", {**last, "id": 59 + len(shown)})
        return shown[-1]

    last = json.loads((run / "search" / "journal.jsonl").read_text().splitlines()[-1])
    monkeypatch.setattr(LiveReport, "html", draw_and_go_on)
    with serving(run, seconds=1) as port:
        dom, console = visit(f"http://localhost:{port}/", tmp_path / "1", "--dump-dom", "--virtual-time-budget=1500")
        rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
        refused, _ = visit(f"http://evil.example:{port}/", tmp_path / "2", "--dump-dom", rules)
    assert len(shown) == 2
    assert console == ""
    assert "<b>60</b><span>candidates judged</span>" in shown[0]
    assert "<b>61</b><span>candidates judged</span>" in dom
    assert dom.count("<img ") >= 3
    assert "this server is for this machine" in refused
    assert "candidates judged" not in refused
