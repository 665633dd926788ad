"""The pages: which methods are compared on which federations."""

from __future__ import annotations

from pages.fedbcs import FEDBCS
from pages.few_labels import FEW_LABELS
from pages.fgasl import FGASL
from pages.fsf3a import FSF3A
from pages.pathfl import PATHFL

PAGES = {page.name: page for page in (FSF3A, FEDBCS, PATHFL, FGASL, FEW_LABELS)}
