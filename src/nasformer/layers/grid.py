"""The grid of a map: its rows and columns."""

from __future__ import annotations

Grid = tuple[int, int]


def both_sides(size: int | tuple[int, int]) -> Grid:
    """Rows and columns of something whose size may be given by one number, if it is square.

    >>> both_sides(224), both_sides((224, 160))
    ((224, 224), (224, 160))
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    return rows, columns


def halved(grid: Grid) -> Grid:
    """The grid behind a stride of 2; an odd last row or column counts as a whole one.

    >>> halved((8, 7))
    (4, 4)
    """
    return (grid[0] + 1) // 2, (grid[1] + 1) // 2
