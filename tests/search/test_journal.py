"""The journal survives what happens to files: torn lines, damage, full disks, other settings."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from nasformer.errors import UserError
from nasformer.search.journal import Journal, read_journal
from nasformer.space.arch import Arch
from nasformer.space.mutation import MUTATIONS

SETTINGS = {"seed": 0, "options": {"population": 50, "parents": 10}, "objectives": ("accuracy",)}
LINES = [{"id": id, "accuracy": id / 3} for id in range(3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with three lines."""
    path = tmp_path / "run" / "journal.jsonl"
    with Journal(path, SETTINGS) as journal:
        for line in LINES:
            journal.append(line)
    return path


def test_lines_are_compact_json_in_the_order_given(path: Path) -> None:
    header, first, *_ = path.read_text().splitlines()
    assert header == (
        '{"journal":1,"settings":{"seed":0,"options":{"population":50,"parents":10},"objectives":["accuracy"]}}'
    )
    assert first == '{"id":0,"accuracy":0.0}'


def test_reopening_changes_nothing_and_gives_the_lines_back(path: Path) -> None:
    before = path.read_bytes()
    with Journal(path, SETTINGS) as journal:
        assert list(journal.records) == LINES
    assert path.read_bytes() == before


def test_records_are_those_from_before_the_journal_was_opened(path: Path) -> None:
    with Journal(path, SETTINGS) as journal:
        records = journal.records
        assert next(records) == LINES[0]
        journal.append({"id": 3})
        assert list(records) == LINES[1:]
        assert list(journal.records) == LINES


def test_a_line_is_in_the_file_at_once(path: Path) -> None:
    with Journal(path, SETTINGS, fsync=False) as journal:
        journal.append({"id": 3})
        assert path.read_text().endswith('\n{"id":3}\n')


def test_every_torn_end_is_cut_off(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(0, len(whole), 2):
        path.write_bytes(whole[:size])
        with Journal(path, SETTINGS) as journal:
            assert len(list(journal.records)) == max(whole[:size].count(b"\n") - 1, 0)
            for line in LINES[len(list(journal.records)) :]:
                journal.append(line)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("garbage", [b"\n", b'{"id": 3, "accu\n', b"\0\0\0\0", b"\xff\xfe\n", b"[1]\n", b'{"a":\r1'])
def test_a_damaged_last_line_is_cut_off(path: Path, garbage: bytes) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + garbage)
    assert read_journal(path)[1] == LINES
    assert path.read_bytes() == whole + garbage, "reading alone must not touch the file"
    with Journal(path, SETTINGS) as journal:
        assert list(journal.records) == LINES
    assert path.read_bytes() == whole


@pytest.mark.parametrize("after", [b'{"id":3}\n', b'{"id":3}', b"x"])
def test_damage_before_the_end_is_an_error_that_names_the_line(path: Path, after: bytes) -> None:
    path.write_bytes(path.read_bytes() + b"damaged\n" + after)
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"journal\.jsonl, line 5 is damaged"):
        Journal(path, SETTINGS)
    assert path.read_bytes() == before


def test_damage_inside_a_line_is_found_when_it_is_read(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id":3,"accuracy":}\n{"id":4}\n')
    with Journal(path, SETTINGS) as journal, pytest.raises(UserError, match=r"journal\.jsonl, line 5 is damaged"):
        list(journal.records)
    with pytest.raises(UserError, match=r"journal\.jsonl, line 5 is damaged"):
        read_journal(path)


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    with pytest.raises(UserError, match="is not a search journal"):
        Journal(path, SETTINGS)
    assert path.read_text() == "my notes"


def test_other_settings_are_refused_by_name(path: Path) -> None:
    before = path.read_bytes()
    other = {"seed": 1, "options": {"population": 50, "parents": 12}, "objectives": ["accuracy"], "data": "x"}
    with pytest.raises(UserError) as caught:
        Journal(path, other)
    message = str(caught.value)
    assert "seed was 0, now 1" in message
    assert "options.parents was 10, now 12" in message
    assert "data was not set, now x" in message
    assert "population" not in message
    assert "use another --out folder" in message
    assert path.read_bytes() == before


def test_a_journal_of_another_version_is_refused(path: Path) -> None:
    path.write_text('{"journal":2,"settings":{}}\n')
    with pytest.raises(UserError, match="another version"):
        Journal(path, {})


def test_reading_needs_a_journal(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_journal(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="is empty"):
        read_journal(tmp_path / "empty.jsonl")


def test_settings_may_hold_archs_dataclasses_and_paths(tmp_path: Path) -> None:
    settings = {"mutation": MUTATIONS["code"], "seeds": (Arch(blocks=[{"heads": 3}]),), "data": Path("a/b")}
    for _ in range(2):  # the second time it is compared with what the first one wrote
        Journal(tmp_path / "journal.jsonl", settings).close()
    assert read_journal(tmp_path / "journal.jsonl")[0] == {
        "mutation": {"depth": 0.4, "width": 0.4, "block": 0.2, "unit": "gene"},
        "seeds": [{"blocks": [{"heads": 3}]}],
        "data": "a/b",
    }


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a journal cannot hold"):
        Journal(tmp_path / "journal.jsonl", {"evaluate": print})
    with Journal(tmp_path / "journal.jsonl", {}) as journal, pytest.raises(ValueError, match="JSON"):
        journal.append({"accuracy": float("nan")})


def test_a_full_disk_leaves_a_journal_that_goes_on(path: Path) -> None:
    resource = pytest.importorskip("resource")
    whole = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(path, SETTINGS) as journal:
        # the kernel takes the first ten bytes of the line and refuses the rest, just as a full disk does
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, limits[1]))
        try:
            with pytest.raises(OSError, match="too large") as caught:
                journal.append({"id": 3, "accuracy": 1.0})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG
        assert path.read_bytes() == whole
        journal.append({"id": 3})
    assert json.loads(path.read_text().splitlines()[-1]) == {"id": 3}
