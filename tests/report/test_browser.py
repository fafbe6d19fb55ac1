"""The report in a real browser: Chromium without a window, on a copy of the page as a user has it."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from nasformer.report.html import DIGEST
from nasformer.report.page import write_report
from nasformer.utils.files import write_json

from .fake import edit, write_run
from .fake_evolution import write_evolution

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

QUIET = ("no-first-run", "disable-background-networking", "disable-component-update", "disable-sync", "disable-gpu")
HOSTILE = "</title></script><script>document.title = 'taken over'</script>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run in which every text of the user's is hostile."""
    run = tmp_path_factory.mktemp("browser") / "digits"
    write_run(run)
    edit(run / "config.json", data=HOSTILE, classes=[HOSTILE])
    edit(run / "result.json", note=HOSTILE)
    return write_report(run)


def browse(page: Path, *options: str, fragment: str = "") -> tuple[str, str]:
    """What the browser prints, and what its console says."""
    words = [str(CHROMIUM), "--headless", "--no-sandbox", *(f"--{name}" for name in QUIET), "--enable-logging=stderr"]
    words += [f"--user-data-dir={page.parent / 'profile'}", *options, f"{page.as_uri()}{fragment}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def tooltip(dom: str) -> str:
    (found,) = re.findall(r'<div class="tooltip"[^>]*>(.*?)</div>', dom, re.DOTALL)
    return html.unescape(found)


def test_a_link_to_a_candidate_opens_with_its_architecture(page: Path) -> None:
    dom, console = browse(page, "--dump-dom", fragment="#candidate-3")
    assert console == ""
    assert tooltip(dom).startswith("#3 · generation 0 · random\n")
    assert '"num_heads":' in tooltip(dom)
    assert "<title>nasformer: autoformer-micro on &lt;/title&gt;&lt;/script&gt;" in dom  # nobody took over


def test_a_pointer_on_a_dot_shows_its_architecture(page: Path) -> None:
    """The page with a script of ours beside its own, which stands for the hand that moves the pointer."""
    hand = 'document.querySelector("#model-0 use").dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));'
    text = page.read_text().replace(DIGEST, "unsafe-inline").replace("</body>", f"<script>{hand}</script></body>")
    moved = page.with_name("moved.html")
    moved.write_text(text)
    dom, _ = browse(moved, "--dump-dom")
    assert tooltip(dom).startswith("winner\n")
    assert "embed_dim: " in tooltip(dom)
    assert re.search(r'<a class="dot active" id="model-0"', dom)


def test_the_page_can_be_seen(page: Path) -> None:
    shot = page.with_name("shot.png")
    _, console = browse(page, f"--screenshot={shot}", "--window-size=1100,1400", "--hide-scrollbars")
    assert console == ""
    with Image.open(shot) as picture:
        assert picture.size == (1100, 1400)
        assert len(picture.convert("L").getcolors() or []) > 50


def test_the_report_of_an_evolution(tmp_path: Path) -> None:
    content = write_evolution(tmp_path, "autoformer-micro", 1)
    content["steps"][0]["space"] = HOSTILE
    write_json(tmp_path / "evolution.json", content)
    dom, console = browse(write_report(tmp_path), "--dump-dom", fragment="#value-0-0-2")
    assert console == ""
    assert tooltip(dom).startswith("space A · embed_dim = 64\nE-T error ")
    assert "<title>nasformer: evolution of autoformer-micro on digits</title>" in dom
