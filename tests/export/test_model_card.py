"""The model card: all sections, from the run's own files, and names that may hold anything."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from polyclinic.export.check import Check
from polyclinic.export.model_card import Chosen, model_card, plain, split_counts, table
from polyclinic.export.settings import model_settings
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.predict import load_model

Finished = Callable[..., Path]
CHECK = Check("test", ("north/john-smith-1950",), 1e-7, 256, 0, 0)
HOSTILE = "<script>alert(1)</script> [x](javascript:alert(1)) | `a` *b* https://evil.example www.evil.example"


def card(run: Path, site: str | None = None) -> str:
    workspace, federation = load_model(run, site=site, part=None, model=None)
    chosen = Chosen("all", site, "best", 2)
    return model_card(workspace, RunFolder(run), chosen, model_settings(workspace, federation), CHECK, ["usage"])


def test_a_card_has_data_method_results_exchange_and_limits(everything: Path) -> None:
    run = everything
    text, summary = card(run), json.loads((run / "summary.json").read_text())
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "How to run it", "Data", "Method", "Results by site", "What left the sites", "Training", "Input and output",
        "Check of this export", "Intended use", "Limits", "Licence",
    ]  # fmt: skip
    for site, values in summary["sites"].items():
        assert f"| {site} | {100 * values['dice']:.2f} |" in text
    assert "| `fsr` | feature | Zhao et al., AAAI 2026 |" in text
    assert "No image did." in text
    assert "| north | 3 | 1 | 1 |" in text
    assert "the global model after round 2 (best)" in text
    assert "not a medical device" in text


def test_a_card_names_neither_paths_nor_images(finished: Finished, tiny_federation: Path) -> None:
    text = card(finished())
    assert str(tiny_federation) not in text
    assert "john-smith" not in text


def test_the_model_of_a_site_says_whose_it_is(finished: Finished) -> None:
    text = card(finished("fedbn"), "south")
    assert "the model of the site south" in text
    assert "made for that site's images" in text
    assert "never left a site" in text
    assert "the global model" in card(finished(), "south")  # without weights of their own, sites have this one


def test_pooled_images_are_no_secret(finished: Finished) -> None:
    assert "Everything: this method puts all images in one place" in card(finished("central"))


def test_an_unfinished_run_has_no_table_and_says_so(finished: Finished, tmp_path: Path) -> None:
    run = shutil.copytree(finished(), tmp_path / "run")
    (run / "summary.json").unlink()
    (run / "split.csv").unlink()
    text = card(run)
    assert "The run was not finished" in text
    assert "The run has no table of results yet." in text
    assert "known at the sites alone" in text
    assert split_counts(RunFolder(run), "all") == {}


def links_and_tags(text: str) -> list[str]:
    """What a reader of Markdown with automatic links makes of it, beside text."""
    parser = MarkdownIt("gfm-like", {"linkify": False})
    inner = [child for token in parser.parse(text) for child in (token.children or [])]
    return [token.type for token in inner if token.type not in ("text", "softbreak", "text_special")]


def test_hostile_names_are_text(finished: Finished, tmp_path: Path) -> None:
    assert links_and_tags(f"site {plain(HOSTILE)}") == []
    assert links_and_tags("site [x](y)") != []  # or the test could not fail
    assert "https:" not in plain(HOSTILE)
    run = shutil.copytree(finished(), tmp_path / "run")
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    summary["sites"][HOSTILE] = summary["sites"].pop("north")
    summary["federation"] = HOSTILE
    (run / "summary.json").write_text(json.dumps(summary))
    text = card(run)
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    row = next(line for line in text.splitlines() if line.startswith("| &lt;script"))
    average = next(line for line in text.splitlines() if line.startswith("| **average**"))
    assert row.replace(r"\|", "").count("|") == average.count("|")


def test_tables_have_a_cell_for_every_column() -> None:
    assert table(("a", "b"), [(1, "x")]) == ["| a | b |", "|---|---|", "| 1 | x |", ""]


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\r# b"])
def test_names_stay_in_their_line(text: str) -> None:
    assert plain(text).isprintable()
