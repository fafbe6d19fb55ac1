"""Evolutions without pictures, which take longer to draw than the spaces of these tests to train (see tests/report)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def no_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nasformer.report.evolution.FIGURES", {})
        patch.setattr("nasformer.report.page.FIGURES", {})
        yield
