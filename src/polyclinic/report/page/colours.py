"""The colours of the page, of its charts and of the figures for papers: a method has one colour everywhere.

Hues follow Okabe and Ito's and Tol's sets for colour-blind readers, darker on white and lighter on black, so that each
has a contrast of at least 3 to 1 with its background. The ninth method gets the first colour again, with another dash
and marker.
"""

from __future__ import annotations

LIGHT = {
    "paper": "#ffffff", "raised": "#f6f7f8", "ink": "#1b1e23", "muted": "#5b626c", "line": "#dfe2e6", "grid": "#e9ebee",
    "accent": "#0a5a94", "good": "#1a6b3c", "doubt": "#7a5200", "bad": "#a32020", "shade": "#eef3f7",
}  # fmt: skip
DARK = {
    "paper": "#15181c", "raised": "#1d2126", "ink": "#e7e9ec", "muted": "#a4abb5", "line": "#33393f", "grid": "#2a2f35",
    "accent": "#7cc0f2", "good": "#7fd3a2", "doubt": "#e3b862", "bad": "#f29a94", "shade": "#1b2732",
}  # fmt: skip
# The first method of a comparison is mostly the one that others are held against: it gets no hue.
LIGHT_METHODS = ("#4a4f57", "#0072b2", "#d05a00", "#00855f", "#a3418c", "#a27200", "#0e8aa3", "#85224f")
DARK_METHODS = ("#c3c8d0", "#58b4ec", "#ff9550", "#3ccb9c", "#e391cd", "#e5bb3f", "#6fd5ea", "#ee84a8")
LIGHT_SITES = ("#332288", "#117733", "#aa3377", "#997700", "#2277aa", "#994455", "#4f7d2f", "#6a5acd")
DARK_SITES = ("#a79bf0", "#6cc58a", "#f08cc0", "#dcc04e", "#7cc3ee", "#e59aa6", "#a9cf83", "#b9b0ff")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "pentagon")
COUNT = len(LIGHT_METHODS)


def method_style(index: int) -> tuple[str, str, str]:
    """The colour token, dash and marker of the method at this place of a comparison."""
    return f"@m{index % COUNT}", DASHES[index // COUNT % len(DASHES)], MARKERS[(index + index // COUNT) % len(MARKERS)]


def site_style(index: int) -> tuple[str, str]:
    """The colour token and dash of the site at this place."""
    return f"@s{index % COUNT}", DASHES[index // COUNT % len(DASHES)]


def css_variables(dark: bool) -> str:
    """The declarations of one theme."""
    plain, methods, sites = (DARK, DARK_METHODS, DARK_SITES) if dark else (LIGHT, LIGHT_METHODS, LIGHT_SITES)
    named = {**plain}
    named |= {f"m{number}": colour for number, colour in enumerate(methods)}
    named |= {f"s{number}": colour for number, colour in enumerate(sites)}
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())
