# Each target makes what it needs: an own virtual environment under .venv, builds under build/.
# Only python3 (3.11 or newer), a C++20 compiler and make are needed beforehand.
# With PYTHON=python3.13, say, that is .venv-3.13, beside those of other Pythons.
PYTHON ?= python3
VENV := .venv$(if $(filter-out file,$(origin PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
# What the tests are run with, a group of pyproject.toml: test-light is without torch. And which, by default all.
TEST_GROUP ?= test
TESTS ?=
# Which cases of them test-all runs: --pairs, or --rest, those that test has not run.
TEST_SET ?= --pairs
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja
# With SMOKE=1 a target only shows that it installs all that it needs: native code is configured, scripts and tests are
# imported, and nothing runs.
SMOKE ?=
RUN := $(BIN)/python $(if $(SMOKE),tests/imports.py)
BUILD = $(BIN)/cmake --build $(1) $(if $(SMOKE),-- -n --quiet)
CTEST := $(BIN)/ctest --test-dir build/native --output-on-failure $(if $(SMOKE),-N)
SERIAL_PYTEST := $(BIN)/python -m pytest $(if $(SMOKE),--collect-only -qq)
# All tests that need a Ray cluster run in one process (loadgroup): it takes half a minute to start.
# With --dist loadgroup pytest-xdist waits forever for the replacement of a process of tests that ended.
PYTEST := $(SERIAL_PYTEST) -n auto --maxprocesses 4 --dist loadgroup --max-worker-restart 0
# tests/targets.py compiles the module once, and has it in each clone before.
PACKAGE ?= -e .
SOURCES := $(wildcard csrc/*.h csrc/*.cpp csrc/bindings/*.h csrc/bindings/*.cpp) CMakeLists.txt pyproject.toml
# ON in CI, which knows its compiler.
STRICT ?= OFF
NATIVE_OFF := -DPYSAMPLER_BUILD_MODULE=OFF -DPYSAMPLER_BUILD_TESTS=ON -DPYSAMPLER_WARNINGS_ARE_ERRORS=$(STRICT)
# The sanitizers' runtimes and a large address randomisation do not agree on every kernel.
FIXED_ADDRESSES := $(shell command -v setarch >/dev/null && echo setarch -R)

.DEFAULT_GOAL := help
# A Python without its lock, kept between runs.
NOGIL := build/python-nogil
TSAN := build/python-tsan
SHARED_BY_THREADS := tests/sync/test_hammer.py tests/vector/test_hammer.py tests/vector/test_threads.py

.PHONY: help demo quickstart notebooks gallery examples test test-all test-python test-native build-native test-nogil python-nogil sanitize-nogil test-faults reverts lint format stubs bench bench-vector bench-partial bench-samplers \
  bench-cliffs bench-core bench-actors bench-mujoco bench-trainings bench-averaging bench-phases bench-hosts bench-history bench-smoke docs docs-open docs-links sanitize models aarch64 wheel wheels sbom \
  contract recipes clean

help:  ## what there is
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'

# One stamp for each group of tools, one for the package itself, built in place.
$(VENV)/%.stamp: $(BIN)/python pyproject.toml
	$(PIP) install --group $*
	@touch $@

$(VENV)/package.stamp: $(BIN)/python $(SOURCES)
	@echo "compiling pysampler: a minute or two"
	$(PIP) install $(PACKAGE)
	@touch $@

demo: $(VENV)/package.stamp $(VENV)/demo.stamp  ## HalfCheetah, sampled by gymnasium and by pysampler side by side
	$(RUN) benchmarks/demo.py

notebooks: $(VENV)/package.stamp $(VENV)/notebooks.stamp  ## the notebooks of docs/notebooks, in JupyterLab
	$(BIN)/python -m jupyterlab docs/notebooks

quickstart:  ## docs/quickstart.md to the letter, in a clone and an environment of its own
	$(PYTHON) tests/quickstart.py build/quickstart

test: build-native $(VENV)/package.stamp $(VENV)/$(TEST_GROUP).stamp  ## the quick tests, before each commit
	$(CTEST) -j $$(nproc) -LE slow
	$(PYTEST) --quick --durations=10 $(TESTS)

test-all: test-native test-python  ## every test but long ones, native and Python, with each pair of parameters

test-python: $(VENV)/package.stamp $(VENV)/$(TEST_GROUP).stamp
	$(PYTEST) --durations=20 $(TEST_SET) $(TESTS)

test-native: build-native
	$(CTEST) -j $$(nproc)

build-native: $(VENV)/native.stamp
	$(CMAKE) -S . -B build/native $(NATIVE_OFF)
	$(call BUILD,build/native)

python-nogil: $(NOGIL)/bin/python3  ## a Python without its lock, from Debian's sources: seven minutes

$(NOGIL)/bin/python3:
	$(PYTHON) tests/python_nogil.py $(NOGIL)

test-nogil: python-nogil  ## the tests of threads, workers and primitives, on a Python without its lock
	$(NOGIL)/bin/python3 -m venv $(NOGIL)/venv
	$(NOGIL)/venv/bin/python -m pip install -q --only-binary :all: -e . --group contract
	$(NOGIL)/venv/bin/python -m pytest --quick tests/sync tests/workers tests/vector/test_threads.py tests/vector/test_hammer.py tests/samplers/test_threads.py

# Instrumented for ThreadSanitizer, like our module; NumPy is not.
$(TSAN)/bin/python3:
	$(PYTHON) tests/python_nogil.py --instrumented $(TSAN)

sanitize-nogil: $(TSAN)/bin/python3  ## tests in which threads share objects, under ThreadSanitizer, on a Python without its lock
	TSAN_OPTIONS=report_bugs=0 $(FIXED_ADDRESSES) $(TSAN)/bin/python3 -m venv $(TSAN)/venv
	TSAN_OPTIONS=report_bugs=0 $(FIXED_ADDRESSES) $(TSAN)/venv/bin/python -m pip install -q --only-binary :all: . --group contract \
	  -Ccmake.define.PYSAMPLER_SANITIZE=thread -Ccmake.build-type=RelWithDebInfo
	cat $(TSAN)/suppressions_free_threading.txt tests/faults/tsan_nogil.txt >$(TSAN)/suppressions.txt
	cp -r tests pyproject.toml $(TSAN)
	cd $(TSAN) && TSAN_OPTIONS='suppressions=$(CURDIR)/$(TSAN)/suppressions.txt history_size=7 die_after_fork=0' \
	  $(FIXED_ADDRESSES) venv/bin/python -m pytest -p no:cacheprovider --timeout=1200 $(SHARED_BY_THREADS) \
	  -k "not processes and not fork"

test-faults: build-native $(VENV)/package.stamp $(VENV)/test.stamp  ## every case of every test; kills, signals and damage at random points, at length
	PYSAMPLER_EVERY_POINT=1 $(PYTEST)
	PYSAMPLER_FAULT_SEED=$$(date +%s) PYSAMPLER_FAULT_ROUNDS=1000 $(CTEST) -V -R 'faults|kill_points'
	PYSAMPLER_FAULT_SEED=$$(date +%s) PYSAMPLER_FAULT_ROUNDS=300 $(SERIAL_PYTEST) tests/faults/test_kills.py -s
	$(RUN) tests/faults/campaign.py --seconds 600 --out benchmarks/results >/dev/null
	$(RUN) tests/faults/parent.py --seconds 600 --out benchmarks/results >/dev/null
	$(RUN) tests/faults/forks.py --seconds 300 --out benchmarks/results
	$(RUN) tests/faults/suspensions.py --seconds 600 --out benchmarks/results
	$(RUN) tests/faults/descriptors.py --seconds 300 --out benchmarks/results
	$(RUN) tests/faults/hosts.py --faults 100 --seconds 1800 --out benchmarks/results >/dev/null
	$(RUN) tests/faults/differential.py --seconds 600
	$(RUN) tests/faults/fuzz_envs.py --seconds 600
	$(RUN) tests/faults/fuzz_files.py --seconds 600
	$(RUN) tests/faults/full_disks.py --seconds 300 --out benchmarks/results
	$(RUN) tests/faults/fuzz_primitives.py --seconds 600
	$(CMAKE) -S . -B build/tsan-module -DPYSAMPLER_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir)
	$(call BUILD,build/tsan-module)
	$(RUN) tests/faults/threads.py --module build/tsan-module --seconds 600
	$(RUN) tests/faults/soak.py --out benchmarks/results

reverts: $(VENV)/native.stamp $(VENV)/package.stamp $(VENV)/test.stamp  ## do tests notice faults that were mended once? Half an hour
	$(RUN) tests/reverts.py

lint: $(VENV)/package.stamp $(VENV)/lint.stamp $(VENV)/native.stamp  ## formatters in check mode, linters, types, stubs, lines of code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(shell git ls-files '*.h' '*.cpp')
	$(BIN)/python tests/stubs.py --check
	$(BIN)/python tests/size.py
	$(CMAKE) -S . -B build/lint -DPYSAMPLER_BUILD_TESTS=ON -DPYSAMPLER_UNITY=OFF -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) >/dev/null
	printf '%s\n' csrc/*.cpp csrc/bindings/*.cpp tests/native/test_layout.cpp | \
	  xargs -P$$(nproc) -n1 $(BIN)/clang-tidy --quiet -p build/lint

format: $(VENV)/lint.stamp  ## formatters
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(shell git ls-files '*.h' '*.cpp')

stubs: $(VENV)/package.stamp $(VENV)/lint.stamp  ## pysampler/_core.pyi, made from the module
	$(BIN)/python tests/stubs.py

bench: bench-vector bench-mujoco bench-trainings bench-partial bench-samplers bench-actors bench-cliffs bench-core  ## every benchmark, peers in turn; results in benchmarks/results, and how old each is
	$(RUN) benchmarks/pages.py

bench-vector: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(RUN) benchmarks/vector.py --out benchmarks/results
	$(RUN) benchmarks/thinking.py --out benchmarks/results
	$(RUN) benchmarks/loss.py --out benchmarks/results
	$(RUN) benchmarks/watched.py --out benchmarks/results
	$(RUN) benchmarks/threads.py --out benchmarks/results
	$(RUN) benchmarks/neighbours.py --out benchmarks/results
	$(RUN) benchmarks/screens.py
	$(RUN) benchmarks/pages.py

bench-trainings: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(RUN) benchmarks/trainings.py --out benchmarks/results
	$(RUN) benchmarks/pages.py

bench-averaging: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(RUN) benchmarks/averaging.py --out benchmarks/results

bench-phases: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(RUN) benchmarks/phases.py --out benchmarks/results

bench-mujoco: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(RUN) benchmarks/mujoco_envs.py --out benchmarks/results
	$(RUN) benchmarks/wrapped.py --out benchmarks/results
	$(RUN) benchmarks/batches.py --out benchmarks/results
	$(RUN) benchmarks/few_envs.py --out benchmarks/results
	$(RUN) benchmarks/start.py --out benchmarks/results
	$(RUN) benchmarks/chunks.py --out benchmarks/results

bench-partial: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(RUN) benchmarks/partial.py --out benchmarks/results
	$(RUN) benchmarks/slow_resets.py --out benchmarks/results
	$(RUN) benchmarks/torchrl_workloads.py --out benchmarks/results

bench-samplers: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(RUN) benchmarks/samplers.py --out benchmarks/results
	$(RUN) benchmarks/timeout_study.py --out benchmarks/results
	$(RUN) benchmarks/queued_sampler.py --out benchmarks/results
	$(RUN) benchmarks/evaluation.py --out benchmarks/results

examples: $(VENV)/package.stamp $(VENV)/bench.stamp  ## every example to its end, with several seeds (hours); results in benchmarks/results
	$(RUN) benchmarks/examples.py --out benchmarks/results
	$(RUN) benchmarks/gallery.py --curves

gallery: $(VENV)/package.stamp $(VENV)/gallery.stamp  ## the pictures of docs/gallery.md
	$(RUN) benchmarks/gallery.py

bench-actors: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(RUN) benchmarks/dqn.py --out benchmarks/results
	$(RUN) benchmarks/sac.py --out benchmarks/results
	$(RUN) benchmarks/actors.py --out benchmarks/results

bench-cliffs: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(RUN) benchmarks/cliffs.py --out benchmarks/results
	$(RUN) benchmarks/many_envs.py --out benchmarks/results

bench-core: $(VENV)/package.stamp $(VENV)/bench.stamp
	$(CMAKE) -S . -B build/bench -DPYSAMPLER_BUILD_MODULE=OFF -DPYSAMPLER_BUILD_BENCHMARKS=ON
	$(call BUILD,build/bench)
	$(RUN) benchmarks/core.py --native build/bench/benchmarks/native

# RLlib wants a gymnasium of its own.
build/bench-hosts/.stamp: pyproject.toml
	$(PYTHON) -m venv --clear build/bench-hosts
	build/bench-hosts/bin/python -m pip --disable-pip-version-check -q install --upgrade 'pip>=25.1'
	build/bench-hosts/bin/python -m pip --disable-pip-version-check -q install --group bench-hosts
	@touch $@

bench-hosts: wheel build/bench-hosts/.stamp  ## hosts on Ray, beside the same samplers without it and beside others
	build/bench-hosts/bin/python -m pip --disable-pip-version-check -q install --force-reinstall --no-deps dist/*.whl
	cd build/bench-hosts && bin/python $(CURDIR)/benchmarks/hosts.py --out $(CURDIR)/benchmarks/results

bench-history: $(VENV)/package.stamp $(VENV)/bench.stamp  ## ten ratios to reference loops, a row of benchmarks/results/history.jsonl: two minutes
	$(RUN) benchmarks/history.py --out benchmarks/results

bench-smoke: $(VENV)/package.stamp $(VENV)/bench.stamp  ## short runs of some benchmarks, to see that they work
	$(RUN) benchmarks/vector.py --no-peers --slices 2 --seconds 0.1 --out build/bench-smoke
	$(RUN) benchmarks/partial.py --no-peers --repetitions 1 --seconds 0.1 --out build/bench-smoke
	$(RUN) benchmarks/actors.py --quick --out build/bench-smoke
	$(RUN) benchmarks/evaluation.py --quick --out build/bench-smoke
	$(RUN) benchmarks/mujoco_envs.py --quick --out build/bench-smoke
	$(RUN) benchmarks/wrapped.py --quick --out build/bench-smoke
	$(RUN) benchmarks/batches.py --quick --out build/bench-smoke
	$(RUN) benchmarks/few_envs.py --quick --out build/bench-smoke
	$(RUN) benchmarks/start.py --quick --out build/bench-smoke
	$(RUN) benchmarks/chunks.py --quick --out build/bench-smoke
	$(RUN) benchmarks/threads.py --quick --out build/bench-smoke
	$(RUN) benchmarks/neighbours.py --quick --out build/bench-smoke
	$(RUN) benchmarks/thinking.py --quick --out build/bench-smoke
	$(RUN) benchmarks/trainings.py --quick --out build/bench-smoke
	$(RUN) benchmarks/averaging.py --quick --out build/bench-smoke
	$(RUN) benchmarks/phases.py --quick --out build/bench-smoke
	$(RUN) benchmarks/torchrl_workloads.py --quick --out build/bench-smoke

sanitize: $(VENV)/native.stamp  ## the native tests under ThreadSanitizer, then Address- and UndefinedBehaviourSanitizer
	$(CMAKE) -S . -B build/tsan $(NATIVE_OFF) -DPYSAMPLER_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo
	$(BIN)/cmake --build build/tsan
	TSAN_OPTIONS=halt_on_error=1 $(FIXED_ADDRESSES) $(BIN)/ctest --test-dir build/tsan --output-on-failure
	$(CMAKE) -S . -B build/asan $(NATIVE_OFF) -DPYSAMPLER_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo
	$(BIN)/cmake --build build/asan
	UBSAN_OPTIONS=halt_on_error=1 $(FIXED_ADDRESSES) $(BIN)/ctest --test-dir build/asan --output-on-failure

docs: $(VENV)/package.stamp $(VENV)/docs.stamp  ## the documentation, in build/docs; warnings are errors
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

docs-open: docs  ## the same, in a browser
	$(BIN)/python -m webbrowser -t file://$(CURDIR)/build/docs/index.html

docs-links: $(VENV)/docs.stamp  ## links to other sites (needs the network)
	$(BIN)/python -m sphinx -q -b linkcheck docs build/links

models:  ## the protocols under the model checker (Debian package spin)
	$(PYTHON) tests/models/check.py

aarch64: $(VENV)/native.stamp  ## the native tests built for aarch64, run under qemu (Debian: g++-aarch64-linux-gnu qemu-user)
	$(CMAKE) -S . -B build/aarch64 $(NATIVE_OFF) -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_CROSSCOMPILING_EMULATOR='qemu-aarch64;-L;/usr/aarch64-linux-gnu'
	$(BIN)/cmake --build build/aarch64
	$(BIN)/ctest --test-dir build/aarch64 --output-on-failure -R 'layout|flag|position|doorbell|test_ring|board|trace'

wheel: dist/.stamp  ## sdist, and the wheel made from it, in dist/

dist/.stamp: $(SOURCES) $(wildcard pysampler/*.py pysampler/*/*.py pysampler/*/*/*.py) | $(VENV)/wheels.stamp
	rm -rf dist
	$(BIN)/python -m build
	@touch $@

wheels: wheel  ## a manylinux wheel for each Python on PATH, each checked and installed in an empty environment
	$(BIN)/python tests/wheels.py dist --out build/wheels

sbom: wheel $(VENV)/sbom.stamp  ## the packages that a wheel installs, and pybind11, which is compiled in: CycloneDX, in build/sbom
	$(PYTHON) -m venv --clear --without-pip build/sbom/venv
	$(PIP) --python build/sbom/venv/bin/python install dist/*.whl 'pybind11>=3.0.2'
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file build/sbom/pysampler.cdx.json build/sbom/venv/bin/python

contract: wheel  ## gymnasium's contract, with the oldest gymnasium we support and the one RLlib pins
	for version in 1.1.0 1.2.2; do \
	  $(PYTHON) -m venv --clear build/contract && \
	  build/contract/bin/python -m pip --disable-pip-version-check -q install --upgrade 'pip>=25.1' && \
	  build/contract/bin/python -m pip --disable-pip-version-check -q install dist/*.whl gymnasium==$$version \
	    --group contract && \
	  cp -r tests pyproject.toml build/contract && \
	  (cd build/contract && bin/python -m pytest tests/gymnasium tests/vector/test_properties.py) || exit 1; \
	done

recipes: wheel $(VENV)/recipes.stamp  ## each of examples/recipes, and suites and envs of libraries, in environments of their own
	$(BIN)/python tests/recipes.py dist/*.whl

clean:  ## everything that was made here
	rm -rf .venv .venv-3.* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
