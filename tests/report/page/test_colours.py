from __future__ import annotations

from polyclinic.report.page.colours import (
    DARK,
    DARK_METHODS,
    DARK_SITES,
    LIGHT,
    LIGHT_METHODS,
    LIGHT_SITES,
    css_variables,
    method_style,
    site_style,
)


def contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        shares = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_lines_and_points_stand_out_from_the_paper() -> None:
    for theme, colours in ((LIGHT, LIGHT_METHODS + LIGHT_SITES), (DARK, DARK_METHODS + DARK_SITES)):
        assert min(contrast(colour, theme["paper"]) for colour in colours) >= 3


def test_no_two_of_forty_methods_look_alike() -> None:
    assert len({method_style(index)[:2] for index in range(32)}) == 32
    assert method_style(0)[0] == method_style(8)[0]
    assert site_style(3) == ("@s3", "solid")


def test_both_themes_have_the_same_names() -> None:
    names = [[part.split(":")[0].strip() for part in css_variables(dark).split(";")] for dark in (False, True)]
    assert names[0] == names[1]
    assert {"--paper", "--m7", "--s7"} <= set(names[0])
