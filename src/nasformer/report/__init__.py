"""Report: what a run folder tells, as pictures and as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from nasformer.files import write_bytes, write_text
from nasformer.report.contents import read_run
from nasformer.report.html import page

__all__ = ["write_report"]


def write_report(run: Path) -> Path:
    """Writes `plots/*.png` and `report.html` into the run folder; gives the path of the HTML.

    What the folder does not hold is left out, a damaged file raises a UserError. The same folder always gives
    the same bytes.
    """
    from nasformer.report.plots import FIGURES  # not at the top: matplotlib takes a while to import
    from nasformer.report.style import png

    contents, pictures = read_run(Path(run)), {}
    for name, draw in FIGURES.items():
        figure, target = draw(contents), contents.folder / "plots" / f"{name}.png"
        if figure is None:
            target.unlink(missing_ok=True)  # one from an earlier report would no longer be true
        else:
            pictures[name] = png(figure)
            write_bytes(target, pictures[name])
    target = contents.folder / "report.html"
    write_text(target, page(contents, pictures))
    return target
