# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(PYTHON) scripts/install
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

# For this machine's processor; those of tests and wheels are for all, in twice the time.
$(VENV)/.core: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@SKBUILD_CMAKE_DEFINE=QUIRE_THIS_MACHINE=ON $(INSTALL) "Quire and what it needs" $(BIN)/python -e .
	touch $@

# The test oracles. torch's CPU build is enough where pip finds it; TORCH_FLAGS="--index-url ..." tells it where.
# Of their 14,000 files those are compiled that something imports, when it does.
$(VENV)/.dev: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@SKBUILD_CMAKE_DEFINE=QUIRE_THIS_MACHINE=OFF $(INSTALL) "Quire for all processors" $(BIN)/python -e .
	touch $(VENV)/.core
	@$(INSTALL) "torch, the tests' oracle" $(BIN)/python --no-compile $(TORCH_FLAGS) "torch==2.13.0+cpu" || \
	  $(INSTALL) "torch as the index has it, which has no CPU build," $(BIN)/python --no-compile $(TORCH_FLAGS) "torch==2.13.0"
	@$(INSTALL) "a pip that knows groups" $(BIN)/python -U pip
	@$(INSTALL) "the tests' packages" $(BIN)/python --no-compile --group dev --group oracle
	touch $@
