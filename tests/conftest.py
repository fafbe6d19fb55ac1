"""A finished run that tests share, since it takes some seconds to make."""

from __future__ import annotations

import gc
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder; tests read it only."""
    import small_run
    import tiny  # noqa: F401 - one thread, as for all small tensors
    from nasformer.cli.main import main

    folder = tmp_path_factory.mktemp("finished") / "run"
    with small_run.pictures(drawn=False):  # whichever test asks first
        assert main(small_run.words("run", folder)) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(finished, tmp_path / "run")


gc.disable()  # while modules are imported: they live to the end, and collecting takes a quarter of the time


def pytest_collection_finish() -> None:
    """From here on the garbage collector looks at what tests make, and never again through modules and tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_pictures() -> Iterator[None]:
    """Reports without figures, which take half the time of a small run; `small_run.pictures` brings them."""
    import small_run

    with small_run.pictures(drawn=False):
        yield
