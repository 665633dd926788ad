from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.audit import AuditLog, end_of_chain, read_audit
from polyclinic.exchange.audit_head import head_path
from polyclinic.exchange.messages import Failure, Update, to_tensors


def update(number: int) -> Update:
    weights = {"w": torch.full((2, 3), float(number)), "n": torch.tensor(number)}
    return Update("north", number, weights, 5, 6, {"cdpa": {"p": torch.ones(4, dtype=torch.float16)}})


def filled(path: Path, count: int = 4) -> AuditLog:
    log = AuditLog(path)
    for number in range(count):
        log.add("run", "all", *to_tensors(update(number)))
    return log


def test_a_line_for_every_message_in_an_unbroken_chain(tmp_path: Path) -> None:
    filled(tmp_path / "home" / "audit.jsonl")
    entries = list(read_audit(tmp_path / "home" / "audit.jsonl"))
    assert [(one["run"], one["part"], one["round"], one["kind"]) for one in entries] == [
        ("run", "all", number, "Update") for number in range(4)
    ]
    assert entries[0]["before"] == "0" * 64
    lines = (tmp_path / "home" / "audit.jsonl").read_bytes().splitlines()
    assert [one["before"] for one in entries[1:]] == [hashlib.sha256(line).hexdigest() for line in lines[:-1]]


def test_tensors_are_listed_with_the_hash_of_their_bytes(tmp_path: Path) -> None:
    turned = torch.arange(6.0).reshape(2, 3).T
    weights = {"a": turned, "b": torch.tensor(3), "c": torch.empty(0, 2), "d": torch.tensor([True, False])}
    message = Update("north", 0, weights, 1, 1)
    entry = AuditLog(tmp_path / "audit.jsonl").add("r", "all", *to_tensors(message))
    assert [one["name"] for one in entry["tensors"]] == [f"weights/{name}" for name in weights]
    for one, tensor in zip(entry["tensors"], weights.values(), strict=True):
        array = tensor.contiguous().numpy()
        assert one["sha256"] == hashlib.sha256(array.tobytes()).hexdigest()
        assert (one["shape"], one["dtype"], one["bytes"]) == (list(array.shape), str(array.dtype), array.nbytes)
    plain = json.dumps(to_tensors(message)[1], sort_keys=True)
    assert entry["bytes"] == message.bytes + len(plain)
    assert entry["plain"]["samples"] == 1
    assert list(read_audit(tmp_path / "audit.jsonl")) == [entry]


def changed(lines: list[str]) -> list[str]:
    return [lines[0], lines[1].replace('"round": 1', '"round": 7'), *lines[2:]]


def with_another(lines: list[str]) -> list[str]:
    return [*lines[:2], json.dumps({**json.loads(lines[1]), "round": 9}), *lines[2:]]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (changed, "line 3 does not follow"),
        (with_another, "line 3 does not follow"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 does not follow"),
        (lambda lines: lines[1:], "line 1 does not follow"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "line 2 does not follow"),
        (lambda lines: [*lines[:2], lines[2][:40], lines[3]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], "", *lines[2:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], "[]", *lines[2:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], "5", *lines[2:]], "line 3 is damaged"),
    ],
)
def test_a_changed_added_or_removed_line_is_found(spoil: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    filled(path)
    path.write_text("\n".join(spoil(path.read_text().splitlines())) + "\n")
    with pytest.raises(PolyclinicError, match=words):
        list(read_audit(path))


def test_a_flipped_byte_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    filled(path)
    data = bytearray(path.read_bytes())
    data[10] = 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(PolyclinicError, match="line 1 is damaged"):
        list(read_audit(path))


def test_a_log_that_is_not_there_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"audit\.jsonl: cannot be read"):
        list(read_audit(tmp_path / "audit.jsonl"))


@pytest.mark.parametrize("count", [0, 3])
def test_half_a_last_line_after_a_kill_is_no_alarm_and_taken_off(count: int, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = filled(path, count)
    head = head_path(path).read_bytes() if count else None
    log.add("run", "all", *to_tensors(update(count)))
    whole = path.read_bytes()
    head_path(path).write_bytes(head) if head else head_path(path).unlink()
    path.write_bytes(whole[: whole.rfind(b"\n", 0, -1) + 1 + 30])
    assert len(list(read_audit(path))) == count
    AuditLog(path).add("run", "all", *to_tensors(Failure("north", 9, "no")))
    assert [one["round"] for one in read_audit(path)] == [*range(count), 9]


def test_two_workers_at_once_make_one_chain(tmp_path: Path) -> None:
    """One is killed and the next one starts while it is still writing."""
    old, new = filled(tmp_path / "audit.jsonl", 2), AuditLog(tmp_path / "audit.jsonl")
    for number, log in enumerate((new, old, old, new, new, old), start=2):
        log.add("run", "all", *to_tensors(update(number)))
    assert [one["round"] for one in read_audit(tmp_path / "audit.jsonl")] == list(range(8))


def test_what_could_not_be_written_leaves_no_trace_in_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path / "audit.jsonl", 2)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(PolyclinicError, match=r"No space left on device\), so nothing leaves"):
            log.add("run", "all", *to_tensors(update(2)))
    log.add("run", "all", *to_tensors(update(3)))
    assert [one["round"] for one in read_audit(tmp_path / "audit.jsonl")] == [0, 1, 3]


def test_a_log_that_is_a_folder_lets_nothing_leave(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    log = AuditLog(tmp_path / "audit.jsonl")
    with pytest.raises(PolyclinicError, match="so nothing leaves"):
        log.add("run", "all", *to_tensors(update(0)))


def test_names_in_any_language_keep_the_chain(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    for text in ("Köln", "line\u2028separator\x85and\x0bmore", "two\nlines"):
        log.add("run", "all", *to_tensors(Failure("north", 0, text)))
    assert [one["plain"]["reason"][:3] for one in read_audit(tmp_path / "audit.jsonl")] == ["Köl", "lin", "two"]


def test_lines_are_numbered_and_a_line_of_before_has_no_number(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    filled(path, 2)
    assert [one["line"] for one in read_audit(path)] == [1, 2]
    older = [json.loads(line) for line in path.read_text().splitlines()]
    before = "0" * 64
    texts = []
    for entry in older:
        texts.append(json.dumps({**{k: v for k, v in entry.items() if k != "line"}, "before": before}))
        before = hashlib.sha256(texts[-1].encode()).hexdigest()
    path.write_text("\n".join(texts) + "\n")
    head_path(path).unlink()
    assert len(list(read_audit(path))) == 2, "a log of an older version"
    AuditLog(path).add("run", "all", *to_tensors(update(2)))
    assert [one.get("line") for one in read_audit(path)] == [None, None, 3]


def test_a_log_whose_end_was_cut_off_lets_nothing_leave(tmp_path: Path) -> None:
    """Else the next line would anchor what is left of it."""
    path = tmp_path / "audit.jsonl"
    log = filled(path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    for one in (AuditLog(path), log):
        with pytest.raises(PolyclinicError, match="its end was cut off"):
            one.add("run", "all", *to_tensors(update(4)))
    assert len(path.read_text().splitlines()) == 3


def test_without_its_head_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    log = filled(path, 2)

    def full(*_: Any) -> None:
        raise PolyclinicError("audit.head.json: cannot be written")

    with monkeypatch.context() as patched:
        patched.setattr("polyclinic.exchange.audit.write_head", full)
        with pytest.raises(PolyclinicError, match="cannot be written"):
            log.add("run", "all", *to_tensors(update(2)))
    assert len(list(read_audit(path))) == 2
    log.add("run", "all", *to_tensors(update(2)))
    assert [one["round"] for one in read_audit(path)] == [0, 1, 2]


def test_the_receipt_is_of_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = filled(path, 3)
    assert (log.receipt.lines, log.receipt.sha256) == (3, end_of_chain(path))
