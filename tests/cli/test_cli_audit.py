from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from polyclinic.components.toolbox.privacy.releases import add_release
from polyclinic.deploy.keys.key_folders import make_site_key
from polyclinic.deploy.keys.signatures import KeyFile
from polyclinic.deploy.site.privacy_ledger import PrivacyLedger
from polyclinic.exchange.audit import AuditLog, end_of_chain
from polyclinic.exchange.messages import Description, Failure, Update, to_tensors
from polyclinic.exchange.receipts import Receipt
from polyclinic.runs.receipt_book import ReceiptBook
from support import call


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A site that described itself and then sent one update."""
    log = AuditLog(tmp_path / "audit.jsonl")
    log.add("run-1", "all", *to_tensors(Description("north", -1, {})))
    log.add("run-1", "fold-2", *to_tensors(Update("north", 4, {"w": torch.ones(2, 3), "n": torch.tensor(1)}, 5, 6)))
    return tmp_path


def test_every_message_is_a_line_and_rounds_count_from_1(home: Path) -> None:
    done = call("audit", home)
    assert done.code == 0, done.err
    description, update = (json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines())
    first, second = (line.split()[2:] for line in done.out.splitlines()[1:3])
    assert first[:3] == ["run-1", "all", "Description"], "a description belongs to no round"
    assert "audit.head.json, counts 2 lines and is not signed, because the site had no key" in done.out
    assert second == ["run-1", "fold-2", "5", "Update", "2", str(update["bytes"])]
    assert f"2 messages, {description['bytes'] + update['bytes']} bytes; the chain of the log is whole." in done.out
    assert f"It ends with {end_of_chain(home / 'audit.jsonl')};" in done.out
    assert "sha256" not in done.out


def test_tensors_are_shown_with_shape_and_whole_hash(home: Path) -> None:
    entry = json.loads((home / "audit.jsonl").read_text().splitlines()[1])
    done = call("audit", home / "audit.jsonl", "--tensors")
    lines = [line.split() for line in done.out.splitlines()]
    for tensor, shape in zip(entry["tensors"], ("2x3", "scalar"), strict=True):
        assert [tensor["name"], shape, str(tensor["bytes"]), tensor["sha256"]] in lines


def test_json_is_the_log(home: Path) -> None:
    done = call("audit", home, "--json")
    assert json.loads(done.out) == [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]


def test_an_empty_log_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").touch()
    done = call("audit", tmp_path)
    assert done.out.splitlines()[-1] == "0 messages, 0 bytes; the chain of the log is whole."


def test_a_changed_or_missing_log_gets_a_sentence(home: Path) -> None:
    log = home / "audit.jsonl"
    log.write_text(log.read_text().replace('"run-1"', '"run-2"', 1))
    changed = call("audit", log)
    assert changed.code == 2
    assert changed.err.startswith(f"error: {log}")
    missing = call("audit", home / "none.jsonl")
    assert missing.code == 2
    assert "none.jsonl: cannot be read" in missing.err


def test_the_ledger_of_privacy_is_shown_with_what_it_spent(tmp_path: Path) -> None:
    none = call("audit", tmp_path, "--privacy")
    assert none.code == 0, none.err
    assert "no update with noise has left" in none.out
    ledger: dict[str, torch.Tensor] = {}
    add_release(ledger, bytes(32), 1.0)
    PrivacyLedger(tmp_path).enter("run-1", "fold-2", 4, "ab" * 32, ledger)
    done = call("audit", tmp_path, "--privacy")
    assert done.out.splitlines()[1].split()[2:] == ["run-1", "fold-2", "5", "1", "ab" * 6]
    assert "1 update in all runs spent an epsilon of 4.38" in done.out
    (entry,) = json.loads(call("audit", tmp_path, "--privacy", "--json").out)
    assert (entry["noise"], entry["recipe"]) == (1.0, "ab" * 32)
    (tmp_path / "privacy" / "ledger.json").write_text("{")
    broken = call("audit", tmp_path, "--privacy")
    assert broken.code == 2
    assert "the ledger of privacy cannot be read" in broken.err


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A home whose log is signed with the key of north, in keys/."""
    for name in ("north", "south"):
        make_site_key(tmp_path / "keys", name)
    log = AuditLog(tmp_path / "home" / "audit.jsonl", KeyFile(tmp_path / "keys" / "north.key"))
    for number in range(3):
        log.add("run-1", "all", *to_tensors(Failure("north", number, f"reason {number}")))
    return tmp_path


def test_a_signed_head_is_checked_with_the_site_s_key(signed: Path) -> None:
    from polyclinic.deploy.keys.public_keys import read_public_key

    fingerprint = read_public_key(signed / "keys" / "north.pub").fingerprint
    plain = call("audit", signed / "home")
    assert plain.code == 0, plain.err
    assert f"counts 3 lines and is signed with the key {fingerprint}, which --key NAME.pub would compare." in plain.out
    assert call("audit", signed / "home", "--key", signed / "keys" / "north.pub").code == 0
    other = call("audit", signed / "home", "--key", signed / "keys" / "south.pub")
    assert other.code == 2
    assert "is signed with another key than" in other.err


def test_a_head_that_was_made_to_fit_a_changed_log_has_no_signature(signed: Path) -> None:
    """The tail is cut, and the head is written anew by somebody without the key."""
    log, head = signed / "home" / "audit.jsonl", signed / "home" / "audit.head.json"
    old = json.loads(head.read_text())
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    cut = call("audit", signed / "home")
    assert cut.code == 2
    assert "its end was cut off" in cut.err
    head.write_text(json.dumps({**old, "lines": 2, "last": end_of_chain(log)}))
    forged = call("audit", signed / "home")
    assert forged.code == 2
    assert "its signature is wrong" in forged.err
    head.write_text(json.dumps({**old, "lines": 2, "last": end_of_chain(log), "public": None, "signature": None}))
    unsigned = call("audit", signed / "home", "--key", signed / "keys" / "north.pub")
    assert unsigned.code == 2
    assert "is not signed with" in unsigned.err
    head.unlink()
    missing = call("audit", signed / "home", "--key", signed / "keys" / "north.pub")
    assert missing.code == 2
    assert "is missing" in missing.err


def test_a_kill_between_a_line_and_its_head_is_said_and_no_alarm(signed: Path) -> None:
    head = signed / "home" / "audit.head.json"
    before = head.read_text()
    log = AuditLog(signed / "home" / "audit.jsonl", KeyFile(signed / "keys" / "north.key"))
    log.add("run-1", "all", *to_tensors(Failure("north", 3, "reason 3")))
    head.write_text(before)
    done = call("audit", signed / "home", "--key", signed / "keys" / "north.pub")
    assert done.code == 0, done.err
    assert "The log has one line more, as after a kill." in done.out


def kept_receipts(signed: Path) -> Path:
    """What the coordinator got with each of three answers, and of another site."""
    lines = (signed / "home" / "audit.jsonl").read_bytes().splitlines()
    book = ReceiptBook(signed / "receipts.jsonl", print)
    for number, line in enumerate(lines, start=1):
        book.add("north", Receipt(number, hashlib.sha256(line).hexdigest()))
    book.add("south", Receipt(70, "ab" * 32))
    return signed / "receipts.jsonl"


def test_a_log_is_compared_with_the_receipts_of_the_coordinator(signed: Path) -> None:
    file = kept_receipts(signed)
    for given in (file, signed):
        done = call("audit", signed / "home", "--receipts", given)
        assert done.code == 0, done.err
        assert "3 receipts of the coordinator agree with it." in done.out


def test_a_log_that_was_written_anew_and_signed_contradicts_the_receipts(signed: Path) -> None:
    """Whoever has the key can make a log that is whole; the coordinator knows better."""
    file, key = kept_receipts(signed), KeyFile(signed / "keys" / "north.key")
    for reasons in (("reason 0", "nothing to see"), ("reason 0", "reason 1", "another")):
        for name in ("audit.jsonl", "audit.head.json"):
            (signed / "home" / name).unlink()
        log = AuditLog(signed / "home" / "audit.jsonl", key)
        for number, reason in enumerate(reasons):
            log.add("run-1", "all", *to_tensors(Failure("north", number, reason)))
        assert call("audit", signed / "home", "--key", signed / "keys" / "north.pub").code == 0
        done = call("audit", signed / "home", "--receipts", file)
        assert done.code == 2
        assert "find out why" in done.err


def test_receipts_of_others_say_nothing(signed: Path) -> None:
    ReceiptBook(signed / "receipts.jsonl", print).add("south", Receipt(1, "ab" * 32))
    done = call("audit", signed / "home", "--receipts", signed)
    assert done.code == 2
    assert "has no receipt of north" in done.err
