"""Property tests that do not depend on how busy the machine is, and journals that do not wait for the disk."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of searches write journals here; separate processes still use the real one."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
