# Two commands do everything: `make run` (the default study) and `make test`. Both set themselves up.
VENV ?= .venv
export VENV
BIN := $(VENV)/bin

.PHONY: run test test-slow test-sglang test-slurm lint types docs clean help setup-run setup-test

help:
	@echo "make run          set up, run the default study, name its tables and figures"
	@echo "make test         set up, run the everyday tests"
	@echo "make test-slow    the long tests"
	@echo "make test-sglang  the pinned SGLang's own parser and server (sets up a second environment)"
	@echo "make test-slurm   a real Slurm on this host (needs root, Debian or Ubuntu)"
	@echo "make lint types   format, lint, types"
	@echo "make docs         build the documentation into site/"

setup-run:
	@requirements/setup.sh reference

setup-test:
	@requirements/setup.sh reference,slurm,dev,notebooks,docs

run: setup-run
	@PATH="$$(cd "$(BIN)" && pwd):$$PATH" python -m snakemake --quiet rules --rerun-incomplete --nolock

test: setup-test
	@"$(BIN)/python" -m specjoule.engines.embedded --output .cache/models/smollm2-135m-instruct
	@"$(BIN)/python" -m pytest -m "not slow and not sglang and not slurm" -n 2 --dist loadfile

test-slow: setup-test
	@"$(BIN)/python" -m specjoule.engines.embedded --output .cache/models/smollm2-135m-instruct
	@"$(BIN)/python" -m pytest -m "slow and not sglang and not slurm"

test-slurm: setup-test
	@tests/slurm/run.sh

test-sglang: setup-test
	@bash requirements/install_sglang.sh
	@"$(BIN)/python" -m specjoule.engines.embedded --output .cache/models/smollm2-135m-instruct
	@"$(BIN)/python" -m pytest -m sglang tests/engines/sglang

lint: setup-test
	@"$(BIN)/ruff" format --check src tests workflow benchmarks
	@"$(BIN)/ruff" check src tests workflow benchmarks
	@"$(BIN)/snakefmt" --check --line-length 120 Snakefile workflow/rules 2>&1

types: setup-test
	@"$(BIN)/mypy"

clean:
	rm -rf results/raw results/store results/blocks results/collected results/logs .snakemake

docs: setup-test
	@NO_MKDOCS_2_WARNING=1 "$(BIN)/mkdocs" build --strict
	@echo "The documentation is in site/index.html"
