"""`nasformer watch`: the report of a run that goes on, for this machine alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

import small_run
from nasformer.errors import UserError
from nasformer.report.page import serve


@pytest.fixture
def address(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr("nasformer.report.page.FIGURES", {})
    with serve(run, port=0, seconds=7) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.server_address[:2]
        yield str(host), port
        server.shutdown()
        thread.join()


def get(address: tuple[str, int], path: str = "/", **headers: str) -> tuple[int, str]:
    connection = HTTPConnection(*address, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_page_follows_the_run_and_leaves_its_folder_alone(run: Path, address: tuple[str, int]) -> None:
    before = small_run.contents(run)
    status, page = get(address)
    assert status == 200
    assert '<meta http-equiv="refresh" content="7">' in page
    assert "<b>8</b><span>candidates judged</span>" in page
    assert small_run.contents(run) == before
    journal = run / "search" / "journal.jsonl"
    *lines, last = journal.read_text().splitlines()
    more = {**json.loads(last), "id": 8}
    journal.write_text("\n".join([*lines, last, json.dumps(more)]) + "\n")
    assert "<b>9</b><span>candidates judged</span>" in get(address)[1]
    journal.write_text("{}\n")
    assert "journal.jsonl" in get(address)[1]  # says what cannot be read, and goes on


def test_it_is_for_this_machine(address: tuple[str, int]) -> None:
    assert address[0] == "127.0.0.1"
    assert get(address, Host=f"localhost:{address[1]}")[0] == 200
    assert get(address, Host="evil.example:80")[0] == 403
    assert get(address, "/config.json")[0] == 404
    assert get(address, "/../config.json")[0] == 404


def test_refusals(run: Path, tmp_path: Path, address: tuple[str, int]) -> None:
    for folder in (tmp_path, run / "model"):
        with pytest.raises(UserError, match="no run folder"):
            serve(folder)
    with pytest.raises(UserError, match=f"port {address[1]} cannot be used"):
        serve(run, port=address[1])
