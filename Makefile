# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One thread a worker; compiled files are kept, because tests start many processes.
QUIET := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: demo test browser test-engines fuzz soak format benchmark clean

demo: $(STAMP)
	$(BIN)/polyclinic compare demo-nuclei --methods fedavg,fedbn --seeds 1 --out runs/demo

# Types are checked beside the first tests, which start processes and wait. Three workers for two cores, because tests wait, too.
test: $(STAMP) browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy & types=$$!; $(QUIET) $(BIN)/pytest -q -n 3 || failed=1; wait $$types || failed=1; test -z "$$failed"

# A report is opened in a real Chromium. Debian's is installed where that is possible; elsewhere those tests say what is missing.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	{ command -v apt-get >/dev/null && test "$$(id -u)" = 0 && apt-get update >/dev/null 2>&1 && \
	apt-get install -y --no-install-recommends chromium >/dev/null 2>&1; } || echo "no Chromium here: the tests that open a report in a browser are skipped"

# Every registered method, in one process and over Flower: the same weights? About half an hour.
test-engines: $(STAMP)
	PYTHONPATH=tests $(QUIET) $(BIN)/python tests/e2e/agreement.py benchmarks/engines_agree.md

# Hostile bytes at every boundary, many more than the suite tries; some minutes.
FUZZ ?= 3000
fuzz: $(STAMP)
	POLYCLINIC_FUZZ=$(FUZZ) PYTHONPATH=tests $(QUIET) $(BIN)/python tests/fuzz_report.py benchmarks/fuzz.md

# 50 sites, 500 rounds of 10 of them, a process killed or stopped every few seconds: the same result? Half an hour on two cores, which must
# have nothing else to do. `make soak SOAK=` asks all 50 sites in every round, which needs more cores and was not run.
SOAK ?= --asked 10 --pause 4
soak: $(STAMP)
	PYTHONPATH=tests $(QUIET) $(BIN)/python tests/e2e/soak.py benchmarks/soak.md $(SOAK)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tables of speed, on a machine that does nothing else; about an hour and a half.
BENCHMARKS := startup overhead scaling simulators grid aggregation evaluation_speed methods_cost engine_options large_data
benchmark: $(STAMP)
	for name in $(BENCHMARKS); do OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$$name.py || exit 1; done

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs build dist
