r"""The table of an ablation in LaTeX: ``\input{ablation}`` in a document that uses booktabs and amssymb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyclinic.core.wording import printable_line
from polyclinic.report.latex import latex_caption, latex_text
from polyclinic.report.marks import Mark
from polyclinic.report.optimiser_steps import steps_words

if TYPE_CHECKING:
    from polyclinic.report.ablation import AblationTable

_STYLES: dict[Mark, str] = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}


def latex_ablation(table: AblationTable) -> str:
    """Components with check marks, sites, average and both differences; a comment says which method a row is."""
    marks, sites = len(table.components), len(table.comparison.columns)
    header = " & ".join(map(latex_text, table.header[1:]))
    rows = []
    for (method, *cells), (_, *styles) in zip(table.rows(), table.comparison.marks(), strict=True):
        checks = [r"\checkmark" if cell else "" for cell in cells[:marks]]
        values = cells[marks : marks + sites]
        scores = [_STYLES[style].format(latex_text(value)) for value, style in zip(values, styles[:sites], strict=True)]
        differences = [f"${cell}$" if cell else "" for cell in cells[marks + sites :]]
        rows.append(f"    {' & '.join([*checks, *scores, *differences])} \\\\ % {printable_line(method)}")
    caption = f"Ablation of {table.method}: {table.caption} Best in bold, second underlined."
    body = "\n".join(rows)
    return f"""% Made by polyclinic ablate. In the preamble: \\usepackage{{booktabs}} and \\usepackage{{amssymb}}
\\begin{{table}}
  \\centering
  \\small
  \\caption{{{latex_caption(caption, steps_words(table.comparison.steps))}}}
  \\label{{tab:ablation}}
  \\begin{{tabular}}{{{"c" * marks}{"r" * (sites + 2)}}}
    \\toprule
    {header} \\\\
    \\midrule
{body}
    \\bottomrule
  \\end{{tabular}}
\\end{{table}}
"""
