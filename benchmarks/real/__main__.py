"""Tables on real federations, a page at a time: restores what is recorded, trains the rest, writes page and records.

    POLYCLINIC_REAL_DATA=folder python benchmarks/real fsf3a --jobs 2       # writes benchmarks/real/fsf3a.md
    python benchmarks/real fedbcs --grid brain_lgg                          # one table of a page
    python benchmarks/real pathfl --grid nuclei_xmod-site-trained --seeds 3   # the first seeds of it
    python benchmarks/real fsf3a --tables                                   # from the records alone, without training

An interrupted run goes on when it is started again.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pages import PAGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("--jobs", type=int, help="runs side by side; as many as there are cores by default")
    parser.add_argument("--out", type=Path, default=Path("runs") / "real")
    parser.add_argument("--grid", action="append", help="train this table of the page alone; may be repeated")
    parser.add_argument("--seeds", type=int, help="train so many seeds of a table alone, the first ones; three show")
    parser.add_argument("--tables", action="store_true", help="write the page from finished runs alone")
    options = parser.parse_args()
    data = os.environ.get("POLYCLINIC_REAL_DATA")
    if not data and not options.tables:
        parser.error("set POLYCLINIC_REAL_DATA to the folder that holds the federations, or see --tables")
    page = PAGES[options.page]
    if options.seeds is not None and options.seeds < 1:
        parser.error("--seeds: 1 or more")
    known = [grid.name for grid in page.grids]
    for name in options.grid or ():
        if name not in known:
            parser.error(f"--grid: {options.page} has no table '{name}'; it has {', '.join(known)}")
    chosen = () if options.tables else options.grid or known
    written = page.make(Path(data or "."), options.out, options.jobs, chosen, options.seeds)
    print(f"Written: {written}")


if __name__ == "__main__":
    main()
