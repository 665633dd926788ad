"""The program that segments images beside others, on a GPU of its own; ``runs/prediction_processes.py`` starts it.

Requests are lines of JSON on its stdin, answers lines of JSON on what was its stdout when it started. Whatever else is
printed goes to stderr. It ends when its stdin does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.site_intensity import SiteIntensity
from polyclinic.runs.prediction_job import carry_out
from polyclinic.runs.prediction_plan import Wanted
from polyclinic.runs.trained_model import load_model


def main(arguments: list[str] | None = None) -> None:
    """Answer each request with null, or with the sentence of what went wrong."""
    parser = argparse.ArgumentParser(prog="polyclinic predict program")
    parser.add_argument("--run", type=Path, required=True)
    for name in ("site", "part", "model", "intensity"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--plugins", action="store_true", help="the recipe's plugins may run")
    options = parser.parse_args(arguments)
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        workspace, federation = load_model(
            options.run, site=options.site, part=options.part, model=options.model, plugins=options.plugins
        )
        if options.intensity is not None:
            own = SiteIntensity.from_plain(json.loads(options.intensity), Path("--intensity"))
            federation = replace(federation, intensity={"": own})
    except PolyclinicError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for line in sys.stdin:
        problem = carry_out(workspace, federation, Wanted.from_plain(json.loads(line)))
        os.write(answers, (json.dumps(problem) + "\n").encode())


if __name__ == "__main__":
    main()
