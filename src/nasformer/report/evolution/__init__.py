"""The report of a space's evolution: the page, its pictures, and its tables."""

from __future__ import annotations

from pathlib import Path

from nasformer.files import write_text
from nasformer.report.evolution.contents import Evolution, read_evolution
from nasformer.report.evolution.page import page
from nasformer.report.evolution.tables import dimensions_csv, spaces_csv
from nasformer.report.picture import Picture, save_picture


def write_evolution_report(folder: Path) -> Path:
    """Writes `report.html`, `plots/*.png` and `.svg`, `spaces.csv` and `dimensions.csv`; gives the HTML's path."""
    evolution = read_evolution(folder)
    pictures = write_pictures(evolution)
    write_text(folder / "spaces.csv", spaces_csv(evolution))
    write_text(folder / "dimensions.csv", dimensions_csv(evolution))
    target = folder / "report.html"
    write_text(target, page(evolution, pictures))
    return target


def write_pictures(evolution: Evolution) -> dict[str, Picture]:
    """The figures by name; on the page, the points of one can be pointed at."""
    from nasformer.report.evolution.choices import choices  # not at the top: matplotlib takes a while to import
    from nasformer.report.evolution.curves import error_distribution, space_errors
    from nasformer.report.evolution.tendencies import dots, tendencies

    plots = evolution.folder / "plots"
    found = {
        "space_errors": save_picture(space_errors(evolution), plots / "space_errors"),
        "error_distribution": save_picture(error_distribution(evolution), plots / "error_distribution"),
        "choices": save_picture(choices(evolution), plots / "choices"),
        "tendencies": save_picture(tendencies(evolution), plots / "tendencies", dots(evolution)),
    }
    return {name: picture for name, picture in found.items() if picture}
