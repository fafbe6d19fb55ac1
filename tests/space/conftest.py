"""Property tests that do not depend on how busy the machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
