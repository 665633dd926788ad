"""LaTeX: the layout of a paper's table, and names that are no commands; compiled where a compiler is there."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.report import latex as module
from polyclinic.report.latex import latex_table, latex_tables, latex_text
from polyclinic.report.tables import Comparison

HOSTILE = (
    "[2cm] first", "* star", r"\input{/etc/passwd}", r"\write18{id}", "50% & more", "a_b^c~d#e$f{g}h",
    "Zürich \u2013 Łódź",
    "中心 \u202e", "<b>|x|\"quoted\" 'n' `t`", "new\nline\\\\ \\end{tabular}", "\\", "^^5cinput",
)  # fmt: skip


def table(methods: tuple[str, ...], sites: tuple[str, ...], metric: str = "dice") -> Comparison:
    values = {
        method: {column: [0.5 + 0.01 * number, 0.52 + 0.01 * number] for column in (*sites, "average")}
        for number, method in enumerate(methods)
    }
    p_values = dict.fromkeys(methods[1:], 0.0004)
    return Comparison(metric, methods, sites, values, p_values=p_values)


def test_examples() -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_the_layout_of_a_papers_table() -> None:
    lines = [line.strip() for line in latex_table(table(("fedavg", "fedbn", "fedprox"), ("a", "b"))).splitlines()]
    assert "\\label{tab:dice}" in lines
    rows = lines[lines.index("\\toprule") : lines.index("\\end{tabular}") + 1]
    assert rows == [
        "\\toprule",
        "method & a & b & average & vs fedavg & p \\\\",
        "\\midrule",
        "fedavg & 51.00 $\\pm$ 1.41 & 51.00 $\\pm$ 1.41 & 51.00 $\\pm$ 1.41 &  &  \\\\",
        "fedbn & \\underline{52.00 $\\pm$ 1.41} & \\underline{52.00 $\\pm$ 1.41} & \\underline{52.00 $\\pm$ 1.41} & "
        "$+1.00$ & \\textless{}0.001 \\\\",
        "fedprox & \\textbf{53.00 $\\pm$ 1.41} & \\textbf{53.00 $\\pm$ 1.41} & \\textbf{53.00 $\\pm$ 1.41} & $+2.00$ & "
        "\\textless{}0.001 \\\\",
        "\\bottomrule",
        "\\end{tabular}",
    ]
    assert "dice in \\%, mean $\\pm$ standard deviation over 2 seeds. Best in bold, second underlined." in "".join(
        lines
    )


def test_the_caption_ends_with_the_optimiser_steps() -> None:
    one = table(("fedavg", "fed_bn"), ("a",))
    assert "steps" not in latex_table(one)
    lines = latex_table(replace(one, steps={"fedavg": 24, "fed_bn": 12})).splitlines()
    (caption,) = [line for line in lines if "\\caption" in line]
    assert caption.endswith(" Optimiser steps of all sites together: fedavg 24, fed\\_bn 12.}")
    many = {f"a-method-with-a-name-{number}": number for number in range(15)}
    long = latex_table(replace(one, steps=many, missing=("fedprox seed 1",) * 30))
    assert "Optimiser steps of all sites together: a-method-with-a-name-0 0" in long, "a long caption cuts none off"


@given(st.text(max_size=30))
@settings(max_examples=40)
def test_any_name_is_ascii_without_a_command_of_its_own(name: str) -> None:
    text = latex_text(name)
    assert text.isascii()
    known = r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|ss|ae|AE|o|O|oe|OE|l|L)\{\}"
    rest = re.sub(known + r"|\\[{}$&#%_]|\\[`'^~=u.\"rHvc]\{[A-Za-z]\}|\$\\pm\$|\{[\[\]*]\}", "", text)
    assert not set(rest) & set("\\{}$&#%_~^[]*<>|")


def test_it_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("pdflatex") or shutil.which("tectonic")
    if compiler is None:
        pytest.skip("no LaTeX here: install tectonic, or Debian's texlive-latex-base and texlive-latex-recommended")
    tables = [table(HOSTILE, HOSTILE[:5]), table(("fedavg",), ("a",), "hd95 %_")]
    (tmp_path / "table.tex").write_text(latex_tables(tables), encoding="utf-8")
    document = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n\\input{table}\n\\end{document}\n"
    (tmp_path / "paper.tex").write_text(document, encoding="utf-8")
    options = ["-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape"] if "pdflatex" in compiler else []
    done = subprocess.run(
        [compiler, *options, "paper.tex"], cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000
    assert "passwd}" not in done.stdout
