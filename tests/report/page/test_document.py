from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from polyclinic.report.page import document as module
from polyclinic.report.page.document import document, json_for_html, packed_library, policy

ASSETS = Path(module.__file__).parent / "assets"


class Found(HTMLParser):
    """Scripts with their types, and every address that a browser would follow."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[str | None, str]] = []
        self.addresses: list[str] = []
        self.inside: str | None = None
        self.reading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        self.reading, self.inside = tag == "script", named.get("type")

    def handle_data(self, data: str) -> None:
        if self.reading:
            self.scripts.append((self.inside, data))

    def handle_endtag(self, tag: str) -> None:
        self.reading = False


@pytest.fixture(scope="module")
def page() -> tuple[str, Found]:
    text = document("<Title>", [("a", "<h1>A</h1>")], {"name": "</script><!--\u2028<b>"})
    found = Found()
    found.feed(text)
    return text, found


def test_data_comes_back_as_it_was_and_can_end_no_script(page: tuple[str, Found]) -> None:
    _, found = page
    (data,) = [text for kind, text in found.scripts if kind == "application/json"]
    assert json.loads(data) == {"name": "</script><!--\u2028<b>"}
    for letters in ("<", ">", "&", "\u2028"):
        assert letters not in data
    with pytest.raises(ValueError, match="JSON"):
        json_for_html(float("nan"))


def test_every_script_is_named_by_its_hash_and_nothing_else_may_run(page: tuple[str, Found]) -> None:
    text, found = page
    allowed = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert allowed is not None
    rules = dict(rule.strip().split(" ", 1) for rule in allowed[1].replace("&#39;", "'").split(";"))
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == "'none'"
    sources = [source for kind, source in found.scripts if kind is None]
    packed = next(source for kind, source in found.scripts if kind == "text/plain")
    sources.append(gzip.decompress(base64.b64decode(packed)).decode())
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in sources}
    assert set(rules["script-src"].split()) == hashes
    assert "plotly.js" in sources[-1][:200]
    assert "&lt;Title&gt;" in text


def test_the_file_leads_nowhere(page: tuple[str, Found]) -> None:
    text, found = page
    assert [address for address in found.addresses if not address.startswith(("#", "data:"))] == []
    assert "url(" not in (ASSETS / "style.css").read_text()
    assert "@import" not in text.split("</style>")[0]


def test_a_watched_page_may_ask_its_own_server() -> None:
    assert "connect-src 'self'" in policy(("'sha256-x'",), live=True)


def test_the_library_is_packed_the_same_each_time() -> None:
    first = packed_library()
    packed_library.cache_clear()
    assert packed_library() == first
