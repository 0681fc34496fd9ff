# Needs python3 >= 3.11 and make; everything else goes into .venv, pinned by requirements/*.txt.
#   make rehearse                   the whole cycle on the sample world; prints where the report is
#   make test                       lint, types, tests
#   make rehearse EXTRA=tpu         with the TPU (or cuda) build of jax
#   make rehearse PYTHON=python3.13 with another interpreter
#   make rehearse ARGS='seed=1'     with Hydra overrides
PYTHON ?= python3
EXTRA ?= cpu
VENV ?= .venv
ARGS ?=

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
READY := $(VENV)/.ready-$(VERSION)-$(EXTRA)
BIN := $(VENV)/bin

.PHONY: rehearse test setup lint chaos requirements clean

rehearse: $(READY)
	$(BIN)/python -m flows.rehearsal $(ARGS)

test: lint
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

chaos: $(READY)
	$(BIN)/python -m tests.chaos.run $(ARGS)

setup: $(READY)

# uv installs in seconds what pip installs in minutes; it is itself pinned and lives inside the environment.
$(READY): requirements/$(EXTRA).txt requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "Encore needs Python 3.11, 3.12 or 3.13; $(PYTHON) is $(VERSION). Choose one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/$(EXTRA).txt
	@touch $@

requirements: $(READY)
	for extra in cpu tpu cuda; do \
	  [ $$extra = cpu ] && more= || more="--extra $$extra"; \
	  $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --extra test $$more pyproject.toml --output-file requirements/$$extra.txt --quiet; \
	done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
