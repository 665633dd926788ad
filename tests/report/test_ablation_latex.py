"""The table of an ablation in LaTeX."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from polyclinic.report.ablation import AblationTable
from polyclinic.report.ablation_latex import latex_ablation
from polyclinic.report.tables import Comparison


def table(site: str) -> AblationTable:
    dice: dict[str, list[float | None]] = {"fedavg": [0.5], "m-b_c": [0.6], "m-a": [None], "m": [0.7]}
    kept = {"fedavg": (), "m-b_c": ("a",), "m-a": ("b_c",), "m": ("a", "b_c")}
    values = {row: {site: scores, "average": scores} for row, scores in dice.items()}
    return AblationTable("m", ("a", "b_c"), kept, Comparison("dice", tuple(kept), (site,), values))


def test_check_marks_numbers_and_which_method_a_row_is() -> None:
    lines = latex_ablation(table("north")).splitlines()
    assert "  \\begin{tabular}{ccrrrr}" in lines
    start = lines.index("    \\midrule")
    assert lines[start - 1] == "    a & b\\_c & north & average & vs base & vs full \\\\"
    assert lines[start + 1 : start + 5] == [
        "     &  & 50.00 & 50.00 &  & $-20.00$ \\\\ % fedavg",
        "    \\checkmark &  & \\underline{60.00} & \\underline{60.00} & $+10.00$ & $-10.00$ \\\\ % m-b_c",
        "     & \\checkmark & - & - &  &  \\\\ % m-a",
        "    \\checkmark & \\checkmark & \\textbf{70.00} & \\textbf{70.00} & $+20.00$ &  \\\\ % m",
    ]


def test_the_caption_ends_with_the_optimiser_steps() -> None:
    plain = table("north")
    steps = dict.fromkeys(plain.kept, 24)
    with_steps = replace(plain, comparison=replace(plain.comparison, steps=steps))
    (caption,) = [line for line in latex_ablation(with_steps).splitlines() if "\\caption" in line]
    assert caption.endswith("underlined. Optimiser steps of all sites together: 24 for every method.}")
    assert "Best in bold, second underlined.}" in latex_ablation(plain)


def test_names_are_text_and_no_commands(tmp_path: Path) -> None:
    text = latex_ablation(table("50% \\input{x} & #1_é"))
    assert "\\input" not in text
    assert "50\\% " in text
    compiler = shutil.which("pdflatex") or shutil.which("tectonic")
    if compiler is None:
        pytest.skip("no LaTeX here: apt-get install texlive-latex-recommended")
    (tmp_path / "ablation.tex").write_text(text)
    whole = "\\documentclass{article}\\usepackage{booktabs,amssymb}\\begin{document}\\input{ablation}\\end{document}"
    (tmp_path / "paper.tex").write_text(whole)
    arguments = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in compiler else []
    done = subprocess.run(
        [compiler, *arguments, "paper.tex"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:]
