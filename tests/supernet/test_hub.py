"""Weights that timm publishes: at once from the cache, downloaded, or refused within seconds without network."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from nasformer.errors import UserError
from nasformer.models import hub
from nasformer.supernet.storage import timm_weights
from nasformer.train.loss import load_teacher

NAME = "test_vit"
REPO = timm.get_pretrained_cfg(NAME).hf_hub_id


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a hub that nobody runs, with an empty cache."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "PATIENCE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return address


@contextmanager
def listening(port: int = 0) -> Iterator[str]:
    """The address of a server that knows no page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_without_network_the_way_out_is_told_at_once(closed: str) -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=rf"cannot reach {closed} .*{closed}/timm/.*timm:{NAME}:model.safetensors$"):
        timm_weights(NAME)
    with pytest.raises(UserError, match=rf"cannot reach {closed} .*timm:{NAME}:model.safetensors$"):
        load_teacher(f"timm:{NAME}", 10, 3, torch.device("cpu"))
    assert time.monotonic() - started < 20  # the hub's own client takes a minute


def test_cached_weights_need_no_network(closed: str, tmp_path: Path) -> None:
    state = timm.create_model(NAME).state_dict()
    folder = tmp_path / "cache" / f"models--{REPO.partition('@')[0].replace('/', '--')}"
    for part in ("snapshots/abc", "refs"):
        (folder / part).mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    save_file(state, folder / "snapshots" / "abc" / "model.safetensors")
    loaded = timm_weights(NAME)
    assert all(torch.equal(loaded[name], weight) for name, weight in state.items())


def test_a_hub_that_answers_anything_is_there_and_a_silent_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as address:
        assert hub.unreachable(f"{address}/model") == ""
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    monkeypatch.setattr(hub, "PATIENCE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "timed out" in hub.unreachable(f"http://127.0.0.1:{silent.getsockname()[1]}/model")


def test_a_network_that_is_coming_up_is_waited_for(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE", 60.0)
    with ExitStack() as servers:
        monkeypatch.setattr(time, "sleep", lambda _: servers.enter_context(listening(int(closed.split(":")[2]))))
        assert hub.unreachable(f"{closed}/model") == ""
