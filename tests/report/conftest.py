"""Reports with their figures, of which tests elsewhere do without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import small_run


@pytest.fixture(scope="package", autouse=True)
def with_pictures() -> Iterator[None]:
    with small_run.pictures():
        yield
