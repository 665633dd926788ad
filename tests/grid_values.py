"""Folders of grids with chosen values of cases: files as real runs write them, without any training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from polyclinic.evaluation.aggregate import Row, rows_to_csv
from polyclinic.runs.tested_scores import scores_table

Values = Mapping[str, Mapping[str, float | None]]
"""``site -> case -> value``; ``None`` is what the policy for empty masks leaves out."""


def rows_of(values: Values, metric: str = "dice") -> list[Row]:
    return [
        {"site": site, "case": case, "image": f"{case}-image", "class": "disc", "metric": metric,
         "value": nan if value is None else value}
        for site, cases in values.items()
        for case, value in cases.items()
    ]  # fmt: skip


def write_run(folder: Path, values: Values, metric: str = "dice", split: str = "same", facts: Any = None) -> None:
    """A finished run; ``facts`` is what a test of sites that let only means out leaves beside rows."""
    folder.mkdir(parents=True)
    rows = rows_of(values, metric)
    rows_to_csv(folder / "cases.csv", rows)
    table = scores_table({"all": rows}, {"all": facts or {}}, repeated=False)
    (folder / "summary.json").write_text(json.dumps({**table, "split_sha256": {"all": split}}))


def write_grid(
    folder: Path, methods: Mapping[str, Sequence[Values | None]], metric: str = "dice", splits: Sequence[str] = ()
) -> Path:
    """``methods[name]`` has the values of each seed, ``None`` for a run that is not finished."""
    runs = []
    for number, (method, seeds) in enumerate(methods.items()):
        for seed, values in enumerate(seeds):
            name = f"run{number}-seed{seed}"
            if values is not None:
                write_run(folder / name, values, metric, splits[seed] if splits else "same")
            runs.append({"method": method, "seed": seed, "folder": name})
    folder.mkdir(exist_ok=True)
    most = max(map(len, methods.values()))
    (folder / "grid.json").write_text(json.dumps({"methods": list(methods), "seeds": list(range(most)), "runs": runs}))
    return folder


def one_site(values: Sequence[float | None], site: str = "a") -> Values:
    return {site: {f"c{number}": value for number, value in enumerate(values)}}
