"""The page about choosing says what the command says, and what the tables that it links hold."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from advice_support import VESSELS
from polyclinic.preview.advice_settings import settings_for

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "choose-a-method.md"


def paragraphs() -> list[str]:
    """Rows of tables, each with its table's head, and paragraphs that link a table of numbers."""
    blocks = PAGE.read_text(encoding="utf-8").split("## Before any method")[1].split("\n\n")
    rows = [head + row for head, _, *rows in (b.splitlines() for b in blocks if b.startswith("|")) for row in rows]
    return [text for text in (*rows, *(b for b in blocks if not b.startswith("|"))) if "benchmarks/" in text]


@pytest.mark.parametrize("paragraph", paragraphs(), ids=lambda text: text.partition("||")[2][:30] or text[:30])
def test_every_number_is_in_a_table_that_is_linked_beside_it(paragraph: str) -> None:
    linked = re.findall(r"\]\(([^)#]*benchmarks/[^)#]*\.md)", paragraph)
    tables = "".join((PAGE.parent / name).read_text(encoding="utf-8") for name in linked)
    for number in re.findall(r"\d+\.\d\d+", paragraph):
        assert number in tables, f"{number} is on none of {linked}"


def test_mixed_modalities_get_the_intensities_that_the_command_advises() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| mixed modalities")]
    for pictures, row in zip((True, False), rows, strict=True):
        traits = replace(VESSELS, polarity="mixed", pictures=pictures)
        advised = next(one for one in settings_for(traits, few=False) if one.key == "data.intensity")
        assert f"`{advised.key} = {advised.value}`" in row
        assert ("pictures" in row) == pictures
