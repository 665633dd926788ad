"""One HTML file that needs nothing else: data, scripts and the drawing library inside, all else forbidden.

Nothing is fetched: the Content-Security-Policy allows scripts by their hash, pictures that are in the file, and no
connection (but to the page's own server, while a run is watched). The drawing library, Plotly, is compressed; the
browser unpacks it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.version import VERSION
from polyclinic.report.page.colours import css_variables

GENERATOR = f"polyclinic {VERSION}"
_SCRIPTS = ("theme.js", "tables.js", "charts.js", "gallery.js", "chapters.js", "live.js")
"""In the order in which they run; the first before anything is shown."""


def render(template: str, **context: Any) -> str:
    """A template of the page, with every value escaped that is not marked as HTML."""
    return str(_environment().get_template(template).render(**context))


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("polyclinic.report.page", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment


def breakable(text: str) -> Any:
    """A name that may be broken into lines before ``+``, ``-name`` and ``(`` and after ``,`` and ``_``, as HTML.

    >>> str(breakable("fedavg+cse(a=1)<b>"))
    'fedavg<wbr>+cse<wbr>(a=1)&lt;b&gt;'
    """
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(piece) for piece in re.split(r"(?=[+(]|-[A-Za-z])|(?<=[,_])", str(text)))


def asset(name: str) -> str:
    """A script or style of the page."""
    return (files("polyclinic.report.page") / "assets" / name).read_text(encoding="utf-8")


def json_for_html(value: Any) -> str:
    """Plain data as JSON that can stand in a script element: it holds no ``<``, ``>``, ``&`` and no line separator.

    >>> json_for_html("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_hash(text: str) -> str:
    """How a Content-Security-Policy names a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def packed_library() -> tuple[str, str]:
    """Plotly, compressed and as text, and the hash of its source."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise PolyclinicError("The package plotly draws the charts of a report: pip install 'plotly>=6'.") from None
    source = get_plotlyjs()
    packed = gzip.compress(source.encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode(), script_hash(source)


def policy(scripts: Iterable[str], live: bool) -> str:
    """The Content-Security-Policy; Plotly writes styles, so these are allowed."""
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(scripts),
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def document(title: str, sections: Iterable[tuple[str, str]], data: dict[str, Any], live: bool = False) -> str:
    """The whole page. ``sections`` are identifiers and HTML, ``data`` is what the scripts draw from."""
    library, library_hash = packed_library()
    first, *others = (asset(name) for name in _SCRIPTS)
    script = "\n".join(others)
    return render(
        "page.html",
        title=title,
        sections=[{"id": name, "html": html} for name, html in sections],
        generator=GENERATOR,
        policy=policy((script_hash(first), script_hash(script), library_hash), live),
        light=css_variables(dark=False),
        dark=css_variables(dark=True),
        style=asset("style.css"),
        theme_script=first,
        script=script,
        data=json_for_html(data),
        library=library,
        live=live,
    )
