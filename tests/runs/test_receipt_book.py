from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.receipts import Receipt, read_receipts
from polyclinic.runs import receipt_book
from polyclinic.runs.receipt_book import ReceiptBook

A, B = "aa" * 32, "bb" * 32


def test_receipts_are_kept_and_a_log_that_became_shorter_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "receipts.jsonl"
    book = ReceiptBook(file, said.append)
    for site, receipt in (("north", Receipt(5, A)), ("south", Receipt(2, A)), ("north", Receipt(6, B))):
        book.add(site, receipt)
    assert said == []
    resumed = ReceiptBook(file, said.append)
    for lines in (2, 1, 9):
        resumed.add("north", Receipt(lines, A))
    assert said == [
        "north: its audit log has 2 lines and had 6 before, so lines were taken out or it has a new home; ask the site"
    ]
    assert [one.lines for one in read_receipts(file)["north"]] == [5, 6, 2, 1, 9]


def test_another_line_of_the_same_number_is_no_good_sign(tmp_path: Path) -> None:
    said: list[str] = []
    book = ReceiptBook(tmp_path / "receipts.jsonl", said.append)
    for _ in range(2):
        book.add("north", Receipt(5, A))
    assert said == []
    book.add("north", Receipt(5, B))
    assert len(said) == 1


def test_the_file_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_book, "_LARGEST_FILE", 500)
    said: list[str] = []
    book = ReceiptBook(tmp_path / "receipts.jsonl", said.append)
    for number in range(1, 50):
        book.add("north", Receipt(number, A))
    assert (tmp_path / "receipts.jsonl").stat().st_size < 1000
    assert len(said) == 1


def test_a_full_disk_gets_a_sentence(tmp_path: Path) -> None:
    book = ReceiptBook(tmp_path / "gone" / "receipts.jsonl", print)
    with pytest.raises(PolyclinicError, match="go on with --resume"):
        book.add("north", Receipt(1, A))


def test_half_a_line_of_a_full_disk_does_not_stop_a_run_that_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    warnings: list[str] = []
    ReceiptBook(file, warnings.append).add("north", Receipt(1, "a" * 64))
    with file.open("ab") as out:
        out.write(b'{"time": "2026')
    for lines in (2, 3):
        ReceiptBook(file, warnings.append).add("north", Receipt(lines, "b" * 64))
    assert [given.lines for given in read_receipts(file)["north"]] == [1, 2, 3]
    assert warnings == []
    file.write_bytes(b"nonsense\n" + file.read_bytes())
    ReceiptBook(file, warnings.append).add("north", Receipt(4, "c" * 64))
    assert "line 1 is no receipt" in warnings[0]
