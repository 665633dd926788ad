"""What travels with a model knows nothing of polyclinic."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from polyclinic.export.programs import BUNDLE_SCRIPTS, PROGRAM, copy_programs


@pytest.mark.parametrize(("names", "package"), [(PROGRAM, ""), (BUNDLE_SCRIPTS, "scripts")])
def test_copies_import_each_other_and_no_polyclinic(names: tuple[str, ...], package: str, tmp_path: Path) -> None:
    copy_programs(names, tmp_path, package)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    own = set()
    for path in tmp_path.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "polyclinic" not in text
        modules = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
        own |= {module for module in modules if f"{str(module).rpartition('.')[2]}.py" in names}
    assert own
    assert all(str(module).rpartition(".")[0] == package for module in own)
