"""Files of a finished run, read."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

SIZES = {"north": 5, "south": 4}  # images of the tiny federation
METHODS = ["fedavg", "fedbn", "local", "central"]  # shared, partly shared, own and pooled models


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "cases.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def summary_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "summary.json").read_text()))


def split_of(run: Path, name: str = "split.csv") -> dict[tuple[str, str], str]:
    with (run / name).open(newline="") as file:
        return {(row["site"], row["image"]): row["split"] for row in csv.DictReader(file)}
