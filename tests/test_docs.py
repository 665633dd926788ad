"""What the documentation shows works, and what is made from the code is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyclinic.components.registry import find_component
from polyclinic.methods.registry import Method, methods
from polyclinic.report.reference import PAGES, write_pages

ROOT = Path(__file__).resolve().parent.parent


def python_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def test_the_pages_made_from_the_code_are_current(tmp_path: Path) -> None:
    write_pages(tmp_path)
    for name in PAGES:
        made, kept = (folder / name for folder in (tmp_path, ROOT / "docs"))
        assert kept.read_text() == made.read_text(), f"run: python -m polyclinic.report.reference ({name})"


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = python_blocks("README.md")
    assert len([line for line in block.splitlines() if line.strip()]) < 10
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    shown = capsys.readouterr().out
    assert "| fedavg |" in shown
    assert (tmp_path / "runs/first/summary.json").is_file()


PAGES_WITH_LINKS = [
    "README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/data.md", "docs/methods.md", "docs/robust.md",
    "docs/privacy.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "methods").glob("*.md")),
]  # fmt: skip


@pytest.mark.parametrize("method", [method for method in methods().values() if method.paper], ids=lambda m: m.name)
def test_every_published_method_has_a_page_with_its_settings_and_what_leaves(method: Method) -> None:
    text = (ROOT / "docs" / "methods" / f"{method.name}.md").read_text(encoding="utf-8")
    for words in ("## What leaves a site", "## Settings", "polyclinic run", "|---|"):
        assert words in text
    for part in method.parts:
        assert part.component in text
        if part.component == "weighted_mean" and method.name != "fedavg":
            continue
        for setting in find_component(part.component).Settings.model_fields:
            named = re.search(rf"^\|.*`(?:\w+\.)?{setting}`", text, re.MULTILINE)
            assert named, f"{method.name}.md has no row for {part.component}.{setting}"


@pytest.mark.parametrize("page", PAGES_WITH_LINKS)
def test_links_and_named_files_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} points to {target}"
    for named in re.findall(r"`((?:tests|benchmarks|docs)/[\w/]+\.\w+)`", text):
        assert (ROOT / named).exists(), f"{page} names {named}"
