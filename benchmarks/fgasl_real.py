"""FGASL, the rows of its ablation (Table 5), the methods it is compared with and the bounds, on a real federation.

    POLYCLINIC_REAL_DATA=folder python benchmarks/fgasl_real.py --jobs 2      # writes benchmarks/fgasl_real.md

The folder holds `cardiac_lv`: the left ventricle in slices of cine MRI from Dijon (ACDC), cine MRI from the United
States (NDSB 2) and late-enhancement MRI from Shanghai (MS-CMRSeg), split 60/20/20 by patient. It is FGASL's cardiac
task in small: each site is left out once and tested with all of its images, the two others train. An interrupted run
goes on when it is started again.
"""

from real_tables import Table, report

SSL = "fixmatch(threshold=0.7,dice=true)"
BOUNDS = ("fl_lower", "fl_upper", "local", f"local+{SSL}")
ABLATION = (
    SSL, f"{SSL}+gaa", "fgasl-gaa-perturbation_invariance", f"{SSL}+perturbation_invariance",
    "fgasl-perturbation_invariance", f"fgasl-dual_teacher+{SSL}", "fgasl-gaa", "fgasl",
)  # fmt: skip
FAMILY = ("rscfed", "dpl", "fedcd", "fedcd+randconv", "augseg", "augseg+lddg")
TABLES = (
    Table(
        "fgasl_cardiac",
        "The left ventricle at a site that took no part, 12 labelled images at each of the two others",
        (*BOUNDS, *ABLATION, *FAMILY),
    ),
)
HEAD = [
    "FGASL, few labels and unseen sites on a real federation",
    "Learning rate, rounds and steps are the same for all methods, with the defaults of their pages in",
    "docs/reference/methods/.",
    "`fl_lower` is FedAvg on the labelled images alone, `fl_upper` FedAvg with all labels. The rows of the paper's",
    "Table 5 are written as on docs/reference/methods/fgasl.md: without DR, unlabelled images are learned from",
    "FixMatch with a",
    "confidence of 0.7. A column is the site that is left out; `local` is the mean of the two other sites' own models",
    "there. The model of the last round is tested, so that no label of a validation image takes part in any choice.",
]

if __name__ == "__main__":
    report("fgasl_real", str(__doc__), TABLES, HEAD)
