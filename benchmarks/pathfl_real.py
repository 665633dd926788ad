"""PathFL, the rows of its ablation (Table 7) and the methods it is compared with, on a real federation.

    POLYCLINIC_REAL_DATA=folder python benchmarks/pathfl_real.py --jobs 2      # writes benchmarks/pathfl_real.md

The folder holds `nuclei_xmod`: nuclei in three fluorescence sets, two H&E sets, a grey bright-field set (all from the
2018 Data Science Bowl) and MoNuSeg, one folder a set, split 60/20/20 by source image. It is PathFL's cross-source and
cross-modality setting in small. An interrupted run goes on when it is started again.
"""

from real_tables import Table, report

ABLATION = (
    "fedavg", "pathfl-afa-ssa", "pathfl-cse-ssa", "pathfl-cse-afa", "pathfl-ssa", "pathfl-afa", "pathfl-cse", "pathfl",
)  # fmt: skip
FAMILY = ("fedbn", "histofl", "fedfa", "fedheal")
TABLES = (
    Table("pathfl_nuclei", "Nuclei in seven sets of four kinds, 287 training images of 64x64", (*ABLATION, *FAMILY)),
)
HEAD = [
    "PathFL and the style and aggregation family on a real federation",
    "Learning rate and rounds are the same for all methods. Every method has the defaults of its page in",
    "docs/reference/methods/. The rows of the paper's Table 7 are written as what is dropped: `pathfl-afa-ssa` is CSE",
    "alone,",
    "`pathfl-cse-ssa` AFA alone, `pathfl-cse-afa` SSA alone; without all three it is `fedavg`. The model of the best",
    "validation round is tested.",
]

if __name__ == "__main__":
    report("pathfl_real", str(__doc__), TABLES, HEAD)
