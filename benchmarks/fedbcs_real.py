"""FedBCS, its ablations and the methods it is compared with, on real federations.

    POLYCLINIC_REAL_DATA=folder python benchmarks/fedbcs_real.py --jobs 2      # writes benchmarks/fedbcs_real.md

The folder holds `retina_vessel` (retinal images of DRIVE, STARE, CHASE_DB1 and HRF with vessel masks) and `brain_lgg`
(glioma, slices of three MR sequences from four hospitals), one folder a centre, split 60/20/20 by image and by patient.
An interrupted run goes on when it is started again.
"""

from real_tables import Table, report

ABLATION = ("fedavg", "fedbcs", "fedbcs-fsr", "fedbcs-cdpa")
METHODS = (*ABLATION, "moon", "fedproto", "harmofl", "fpl", "fedcontrast", "fedplvm", "feduv")
TABLES = (
    Table("fedbcs_retina", "Vessels in retinal images, four centres, 77 training images of 96x96", METHODS),
    Table("fedbcs_brain", "Glioma in MR slices, four hospitals, 219 training slices of 64x64", ABLATION),
)
HEAD = [
    "FedBCS and the prototype family on real federations",
    "Learning rate and rounds are the same for all methods of a table. Every method has the defaults of its page in",
    "docs/reference/methods/, published ones where there are any; `fedcontrast` is a re-implementation from an",
    "abstract.",
    "Gradients are clipped at norm 5 for all. The model of the best validation round is tested.",
]

if __name__ == "__main__":
    report("fedbcs_real", str(__doc__), TABLES, HEAD)
