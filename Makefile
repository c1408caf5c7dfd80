# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q
NATIVE := $(shell find native -type f) CMakeLists.txt

.PHONY: serve test check native clean
serve: $(VENV)/.core
	$(BIN)/quire serve $(ARGS)

test: $(VENV)/.dev
	scripts/test

check: $(VENV)/.dev
	scripts/check

native: $(VENV)/.core
	scripts/build_native

clean:
	rm -rf $(VENV) build dist quire/*.so

$(VENV)/.core: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

# The test oracles. torch's CPU build is enough where pip finds it; TORCH_FLAGS="--index-url ..." tells it where.
# Of their 14,000 files those are compiled that something imports, when it does.
$(VENV)/.dev: $(VENV)/.core
	$(PIP) --no-compile $(TORCH_FLAGS) "torch==2.13.0+cpu" || $(PIP) --no-compile $(TORCH_FLAGS) "torch==2.13.0"
	$(PIP) pip -U && $(PIP) --no-compile --group dev --group oracle
	touch $@
