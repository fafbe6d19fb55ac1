"""Report: what a run folder tells, as pictures and as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from nasformer.report.contents import Run, read_run
from nasformer.report.evolution import is_evolution, write_evolution_report
from nasformer.report.hover import HOVER, Picture, dots, save_picture
from nasformer.report.page import page, write_candidates
from nasformer.utils.files import write_text

__all__ = ["write_report"]


def write_report(run: Path) -> Path:
    """Writes `report.html`, `plots/*.png` and `.svg` and `candidates.csv` into the run folder; gives the HTML's path.

    What the folder does not hold is left out, a damaged file raises a UserError. The same folder always gives
    the same bytes. The folder of a space's evolution has a report of its own.
    """
    if is_evolution(Path(run)):
        return write_evolution_report(Path(run))
    contents = read_run(Path(run))
    pictures = write_pictures(contents)
    write_candidates(contents.folder / "candidates.csv", contents.candidates)
    target = contents.folder / "report.html"
    write_text(target, page(contents, pictures))
    return target


def write_pictures(run: Run) -> dict[str, Picture]:
    """The figures of a run by name, which are also written to its folder."""
    from nasformer.report.plots import FIGURES

    told = {HOVER: dots(run)}
    found = {
        name: save_picture(draw(run), run.folder / "plots" / name, told.get(name)) for name, draw in FIGURES.items()
    }
    return {name: picture for name, picture in found.items() if picture}
