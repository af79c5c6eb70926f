# Two commands do everything on a fresh machine: `make chat` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 3

.PHONY: help install chat test snapshots check lint clean

help:
	@echo "make chat     set up, then chat with the demo model"
	@echo "make test     set up, then run the tests"
	@echo "make install  set up alone: runner and what it needs, in $(VENV)"
	@echo "make snapshots  accept how the terminal interface looks now"
	@echo "make check    ruff, mypy, import-linter, then the tests"

install: $(VENV)/.installed

# llama-cpp-python has no wheel for most machines and is compiled here: about 2 minutes on two cores, once: pip keeps what it
# has compiled. What runner asks nothing of is left out, more than half of the work: what it has for images, and the helpers
# of llama.cpp's own programs, which it switches on itself, after the command line: hence the file that every project() reads.
# CMAKE_ARGS="-DGGML_CUDA=on" (or -DGGML_HIP=on, -DGGML_METAL=on, -DGGML_VULKAN=on) compiles it for a GPU; pip's cache is left
# out then, for it may hold one compiled for the processor alone.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "runner needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@command -v cc >/dev/null && command -v c++ >/dev/null || \
		{ echo "llama-cpp-python is compiled here and needs a C and a C++ compiler (Debian: apt install build-essential)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing runner. llama.cpp is compiled on the way: this takes about 3 minutes the first time."
	file=$$(mktemp) && trap 'rm -f "$$file"' EXIT && echo 'set(LLAMA_BUILD_COMMON OFF)' > "$$file" && \
	CMAKE_ARGS="-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_INCLUDE=$$file $(CMAKE_ARGS)" \
		$(BIN)/python -m pip install --quiet $(if $(CMAKE_ARGS),--no-cache-dir) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

chat: install
	@$(BIN)/runner chat demo

# One thread a process, and three processes for two cores: a fifth of their time they wait for others, and a fourth process
# gains nothing. A file's tests stay in one of them: they share what is costly. Files are taken in the order of their names:
# the other order, by the number of tests, leaves a few long ones for the end. Hundreds of tests start runner anew: what Python
# has compiled is kept, whatever the environment says.
#
# What fails is run once more with nothing beside it. What fails there too is broken; what passes there depends on how busy
# the machine is: the run passes, and the test's name stands above its last summary, for it is to be mended.
test: $(VENV)/.installed-dev
	@export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=; \
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder || { \
		test $$? = 1 || exit 1; \
		echo; echo "What failed, once more with nothing beside it:"; \
		$(PYTEST) --last-failed --last-failed-no-failures none --maxfail 3; }

# Look at every picture that changed before it is committed.
snapshots: $(VENV)/.installed-dev
	SNAPSHOTS=write $(PYTEST) -n $(WORKERS) tests/tui/test_snapshots.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache dist build
