"""Catalogue of all spaces, readable without importing torch.

It is a JSON file that `python -m nasformer.families.catalogue` writes from the registry, whenever a built-in space
changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nasformer.families.registry import list_spaces, registered_spaces
from nasformer.utils.files import read_json, write_json

if TYPE_CHECKING:
    from nasformer.families.space import Space

PATH = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True)
class SpaceEntry:
    """What the list of spaces says of one of them; `cardinality` is how many archs it has."""

    name: str
    family: str
    about: str
    cardinality: int

    @classmethod
    def of(cls, space: Space) -> SpaceEntry:
        return cls(space.name, space.model.family, space.about, space.root.cardinality)


def catalogue() -> list[SpaceEntry]:
    """An entry for each built-in space, then for each space that a plugin has registered so far."""
    builtin = [
        SpaceEntry(name, row["family"], row["about"], int(row["cardinality"])) for name, row in read_json(PATH).items()
    ]
    names = {entry.name for entry in builtin}
    return builtin + [SpaceEntry.of(space) for space in registered_spaces() if space.name not in names]


def write_catalogue() -> None:
    """Writes the built-in spaces into the catalogue; cardinalities as text, since many JSON readers round them."""
    entries = map(SpaceEntry.of, list_spaces().values())
    write_json(
        PATH, {e.name: {"family": e.family, "about": e.about, "cardinality": str(e.cardinality)} for e in entries}
    )


if __name__ == "__main__":
    write_catalogue()
