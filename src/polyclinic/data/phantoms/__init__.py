"""Embedded federations of synthetic sites, so that the first command works with no download.

The sites of a demo share one anatomy and differ in style: a model of one site alone is visibly worse at the others,
while one model can serve them all. The files are drawn by numpy and SciPy from a seed, the same bytes every time.
"""

from polyclinic.data.phantoms.catalogue import DEMOS, Demo, find_demo
from polyclinic.data.phantoms.demo_files import VERSION, demo_folder, write_demo

__all__ = ["DEMOS", "VERSION", "Demo", "demo_folder", "find_demo", "write_demo"]
