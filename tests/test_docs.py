"""What the documentation shows works, and what is made from the code is current."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer

import polyclinic
from polyclinic.cli import app
from polyclinic.components.registry import find_component
from polyclinic.methods.registry import Method, methods
from polyclinic.report.reference import PAGES, write_pages

ROOT = Path(__file__).resolve().parent.parent
MARKDOWN = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "deploy/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)


def python_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's titles; the second of two equal ones ends with -1."""
    slugs: list[str] = []
    for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        slug = re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    return set(slugs)


def commands(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command below another, with its full name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    if command.invoke_without_command and name:
        yield name, command
    for word, inner in command.commands.items():
        yield from commands(inner, f"{name} {word}".strip())


def test_the_pages_made_from_the_code_are_current(tmp_path: Path) -> None:
    write_pages(tmp_path)
    for name in PAGES:
        made, kept = (folder / name for folder in (tmp_path, ROOT / "docs" / "reference"))
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


@pytest.mark.parametrize("method", [method for method in methods().values() if method.paper], ids=lambda m: m.name)
def test_every_published_method_has_a_page_with_its_settings_and_what_leaves(method: Method) -> None:
    text = (ROOT / "docs" / "reference" / "methods" / f"{method.name}.md").read_text(encoding="utf-8")
    for words in ("## What leaves a site", "## Settings", "polyclinic run", "|---|"):
        assert words in text
    for part in method.parts:
        assert part.component in text
        if part.component == "weighted_mean" and method.name != "fedavg":
            continue
        for setting in find_component(part.component).Settings.model_fields:
            named = re.search(rf"^\|.*`(?:\w+\.)?{setting}`", text, re.MULTILINE)
            assert named, f"{method.name}.md has no row for {part.component}.{setting}"


@pytest.mark.parametrize("page", MARKDOWN)
def test_links_and_anchors_lead_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", prose(ROOT / page)):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} points to {target}"
        assert not anchor or anchor in anchors(path), f"{page} points to {target}#{anchor}"


def test_a_wrong_anchor_would_be_found() -> None:
    page = ROOT / "docs" / "explanation" / "security.md"
    assert {"what-leaves-a-site", "known-limits"} <= anchors(page)
    assert "what-leaves" not in anchors(page)


# The changelog names files as they were called at the time.
@pytest.mark.parametrize("page", [page for page in MARKDOWN if page != "CHANGELOG.md"])
def test_named_files_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:tests|benchmarks|docs|deploy|recipes)/[\w/-]+\.\w+)`", text):
        assert (ROOT / name).exists() or (ROOT / "src/polyclinic" / name).exists(), f"{page} names {name}"


@pytest.mark.parametrize("page", sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*/*.md")))
def test_modules_named_by_the_pages_exist(page: str) -> None:
    for name in re.findall(
        r"`((?:components|deploy|exchange|federation|networks|runs)/[\w/]+\.py)`", prose(ROOT / page)
    ):
        assert (ROOT / "src/polyclinic" / name).is_file(), f"{page} names {name}"


def test_files_named_by_sentences_and_comments_exist() -> None:
    folders = ("src", "recipes", "deploy", "benchmarks")
    texts = [
        path
        for name in folders
        for path in (ROOT / name).rglob("*")
        if path.suffix not in (".pyc", ".xz") and path.is_file()
    ]
    for path in texts:
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file(), f"{path.relative_to(ROOT)} names {name}"


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    reached, waiting = set(), [index]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", prose(page))
        waiting += [(page.parent / target).resolve() for target in targets]
    assert sorted((ROOT / "docs").rglob("*.md")) == sorted(page for page in reached if ROOT / "docs" in page.parents)


def test_every_command_and_option_is_on_its_page() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}
    known = dict(commands(typer.main.get_command(app)))
    assert sections.keys() == known.keys()
    for name, command in known.items():
        options = [word for option in command.params for word in option.opts if word.startswith("--")]
        shown = re.findall(r"`(--[\w-]+)`", sections[name])
        assert sorted(shown) == sorted(set(options) - {"--help"}), name


def shown_commands(page: Path) -> Iterator[list[str]]:
    """The words of every polyclinic command in the shell blocks of a page, without those that stand for others."""
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("polyclinic "):
                yield shlex.split(line, comments=True)[1:]


@cache
def whole_command() -> click.Command:
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Read a command line as the program does, without running it and without looking for its files."""
    command = whole_command()
    context = click.Context(command, info_name="polyclinic")
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    given, rest, _ = command.make_parser(context).parse_args(list(words))
    missing = [one.name for one in command.params if one.required and given.get(one.name or "") is None]
    if rest or missing:
        raise click.UsageError(f"missing: {missing}, too many: {rest}")


@pytest.mark.parametrize("page", [page for page in MARKDOWN if any(shown_commands(ROOT / page))])
def test_commands_that_pages_show_have_these_options(page: str) -> None:
    for words in shown_commands(ROOT / page):
        try:
            parse(words)
        except click.UsageError as error:
            pytest.fail(f"{page}: polyclinic {shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("line", ["compare a --methods b", "run a --methd b", "predict a b c -o d", "data chek a"])
def test_a_wrong_command_would_be_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse(line.split())


def test_measured_numbers_of_the_readme_are_those_of_the_tables() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Measured")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if "](benchmarks/" in line]
    assert len(rows) == 6
    for row in rows:
        tables = "".join((ROOT / name).read_text() for name in re.findall(r"\]\((benchmarks/[\w/]+\.md)\)", row))
        for number in re.findall(r"\d+\.\d+", row):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", tables), f"{number} is in no table of: {row}"


def test_the_citation_is_of_this_version() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert (citation["type"], citation["title"], citation["license"]) == ("software", "polyclinic", "Apache-2.0")
    assert citation["version"] == polyclinic.__version__
    assert citation["authors"] == [{"name": "The polyclinic contributors"}]
    assert len(citation["references"]) == 3
    assert all({"type", "title", "authors"} <= reference.keys() for reference in citation["references"])
