"""Run the fuzz tests with ``POLYCLINIC_FUZZ`` examples each and write down what they did: ``fuzz_report.py OUT``."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.version import installed_versions


class Record:
    """Outcome and seconds of each test."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call":
            name = report.nodeid.partition("::test_")[2].replace("_", " ")
            self.rows.append(f"| {name} | {report.outcome} | {report.duration:.0f} |")


def main(out: Path) -> int:
    record = Record()
    code = pytest.main(
        ["-q", "-p", "no:cacheprovider", str(Path(__file__).with_name("test_fuzz.py"))], plugins=[record]
    )
    versions = installed_versions()
    text = [
        "# Hostile bytes at every boundary",
        "",
        f"Made by `make fuzz FUZZ={os.environ['POLYCLINIC_FUZZ']}` on {platform.machine()}; polyclinic "
        f"{versions['polyclinic']}, flwr {versions['flwr']}, torch {versions['torch']}. That many inputs for each test "
        "(a tenth for the test of a site's answers), drawn at random; a test passes if every input was refused in a "
        "sentence or was harmless.",
        "",
        "| boundary | outcome | seconds |",
        "|---|---|---|",
        *record.rows,
    ]
    out.write_text("\n".join(text) + "\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
