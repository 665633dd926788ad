"""The head of an audit log: an end that was cut off or changed is found, a kill is no alarm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.audit import AuditLog, head_of, read_audit
from polyclinic.exchange.audit_head import head_path, line_hash, read_head, write_head
from polyclinic.exchange.messages import Failure, to_tensors


def add(log: AuditLog, text: str = "no") -> None:
    log.add("run", "all", *to_tensors(Failure("north", 0, text)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(4):
        add(log, f"reason {number}")
    return path


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def cut(path: Path) -> None:
    path.write_text("".join(lines(path)[:-1]))


def cut_all(path: Path) -> None:
    path.write_text("")


def edit_last(path: Path) -> None:
    *first, last = lines(path)
    path.write_text("".join([*first, last.replace("reason 3", "reason 9")]))


def remove_head(path: Path) -> None:
    head_path(path).unlink()


def older_head(path: Path) -> None:
    head = json.loads(head_path(path).read_text())
    last = line_hash(lines(path)[1].rstrip("\n").encode())
    head_path(path).write_text(json.dumps({**head, "lines": 2, "last": last}))


def break_head(path: Path) -> None:
    head_path(path).write_text("{")


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (cut, "has 3 lines where audit.head.json counts 4, so its end was cut off"),
        (cut_all, "has 0 lines where audit.head.json counts 4"),
        (edit_last, "its last line is not the one that audit.head.json knows"),
        (remove_head, "its head audit.head.json is missing"),
        (older_head, "so the head is an older one or lines were added"),
        (break_head, "is damaged"),
    ],
)
def test_a_changed_end_is_found_and_nothing_is_added_to_it(
    attack: Callable[[Path], None], words: str, path: Path
) -> None:
    attack(path)
    with pytest.raises(PolyclinicError, match=words):
        list(read_audit(path))
    before = path.read_bytes()
    with pytest.raises(PolyclinicError, match=words):
        add(AuditLog(path))
    assert path.read_bytes() == before


def add_and_be_killed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is on the disk, and its head is not."""
    present = len(lines(path))

    def write(log: Path, count: int, last: str, signer: None) -> None:
        if count > present:
            raise KeyboardInterrupt
        write_head(log, count, last, signer)

    with monkeypatch.context() as patched:
        patched.setattr("polyclinic.exchange.audit.write_head", write)
        with pytest.raises(KeyboardInterrupt):
            add(AuditLog(path), "killed")


@pytest.mark.parametrize("kills", [1, 3])
def test_a_kill_between_the_line_and_its_head_is_no_alarm_however_often(
    kills: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(kills):
        add_and_be_killed(path, monkeypatch)
        assert len(list(read_audit(path))) == 5 + number
        assert head_of(path)[1] == "one line more"
    add(AuditLog(path))
    assert head_of(path)[1] == "whole"
    assert len(list(read_audit(path))) == 5 + kills


def test_a_kill_after_the_very_first_line_is_no_alarm(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    add(AuditLog(path))
    head_path(path).unlink()
    assert len(list(read_audit(path))) == 1
    add(AuditLog(path))
    head = read_head(path)
    assert head is not None
    assert head.lines == 2


def test_without_a_key_the_head_says_so(path: Path) -> None:
    head = read_head(path)
    assert head is not None
    assert (head.lines, head.public, head.signature) == (4, None, None)
