# make setup builds .venv; the others but clean begin with it. PYTHON=... names the Python 3.11 to build it from.

PYTHON ?=
ARGS ?=
VENV := .venv/bin
NOX := $(VENV)/nox
GPU_PYTHON ?=

# One compile directory survives between test runs: Theano's compilations are most of a first run.
# The user's own keras.json, .blocksrc and .fuelrc shall not decide what is tested.
TEST_ENV := env THEANO_FLAGS='floatX=float32,base_compiledir=$(CURDIR)/.cache/theano' \
    KERAS_BACKEND=theano KERAS_HOME=$(CURDIR)/.cache/keras BLOCKS_CONFIG= FUEL_CONFIG=

.PHONY: help setup demo data test test-all test-pythons test-engines findings test-keras test-newest test-oldest lint bench soak bench-keras bench-gpu dist readme docs clean distclean

help:
	@echo 'make setup      build or check .venv (Python 3.11; PYTHON=... names the interpreter)'
	@echo 'make demo       two worker processes train a Lasagne network on digits'
	@echo 'make data       fetch Fashion-MNIST for examples and benchmarks (30 MB, with apt-get, without root)'
	@echo 'make test       the parts of the code, and a real job through each promise (ARGS="-k name" instead: all tests'
	@echo '                on Python 3.11 that pytest selects by it; BLOCKS=/path/to/a/checkout tests with that Blocks)'
	@echo 'make test-all   all but rare tests: Python 3.11, 3.9 and 3.13, all back ends of Keras, hosts in namespaces where root'
	@echo 'make test-pythons  what make test runs of the base, on Python 3.9 and 3.13'
	@echo 'make test-engines  the tests with Slurm, Open MPI and Ray, if installed: as root'
	@echo 'make findings   check what other packages do against what one would guess (ARGS="name" runs one; needs the network)'
	@echo 'make test-keras the tests of the Keras adapter alone: Theano, PyTorch, JAX, TensorFlow'
	@echo '                (ARGS="-k name" goes to each)'
	@echo 'make test-newest, make test-oldest  before a release: on the newest releases of today (ARGS adds packages,'
	@echo '                such as torch), and on the oldest versions that pyproject.toml allows'
	@echo 'make lint       ruff, mypy and import-linter'
	@echo 'make bench      run the benchmarks of this host, without GPUs'
	@echo 'make bench-keras  the benchmarks of fit on every back end of Keras (16 GB of memory)'
	@echo 'make bench-gpu  networks from AlexNet to ResNet-50 on 1, 2, 4, 8 GPUs of this host, with Lasagne and Keras 3'
	@echo '                (GPU_PYTHON=... names a Python with Keras 3, torch and JAX for CUDA; ARGS="--rules bsp" goes to each)'
	@echo 'make soak       kill workers at random moments for half an hour, and look for what that breaks'
	@echo 'make dist       the source and a wheel for package indexes, in dist/ (ARGS=--check runs the base tests from them)'
	@echo 'make docs       the site of the docs, in build/site'
	@echo 'make readme     do what the README says, from the wheel, in a fresh environment'
	@echo 'make clean      remove caches and build outputs'
	@echo 'make distclean  clean, and remove .venv, .nox, .cache too'

setup:
	@python=$$(.ci/find_python $(PYTHON)) && "$$python" .ci/setup_env.py

demo: setup
	$(VENV)/platoon launch -n 2 examples/lasagne_digits.py

data:
	@.ci/fetch_data .cache/data

test: setup
	@$(TEST_ENV) $(NOX) -s promises -- $(ARGS)

test-pythons: setup
	@$(TEST_ENV) $(NOX) -s base-3.9 base-3.13

test-all: setup
	@$(TEST_ENV) $(NOX) -s everything

test-engines: setup
	@$(TEST_ENV) $(VENV)/python -m pytest -n 2 --dist loadgroup -m engine tests/hosts $(ARGS)

findings:
	@findings/run_all.sh $(ARGS)

test-keras: setup
	@$(TEST_ENV) $(NOX) -s keras2 keras3 tf -- $(or $(ARGS),-m 'keras and not rare')

test-newest: setup
	@$(TEST_ENV) $(NOX) -s newest-3.13 newest-3.14 -- $(ARGS)

test-oldest: setup
	@$(TEST_ENV) $(NOX) -s oldest -- $(ARGS)

lint: setup
	@$(NOX) -s lint

bench: setup
	@for script in $$(ls benchmarks/*.py | grep -v -e harness -e namespaces -e learning_ -e device -e first_hour -e gpus -e strangers -e torch -e zoo); do \
	    echo "== $$script"; $(VENV)/python "$$script" || exit 1; \
	done
	@$(MAKE) --no-print-directory bench-keras

soak: setup
	@$(VENV)/python benchmarks/soak.py --minutes 30

bench-keras: setup
	@$(NOX) --install-only -s keras3 tf
	@$(TEST_ENV) $(VENV)/python benchmarks/keras_fit.py
	@for what in fit large; do for backend in torch jax; do \
	    KERAS_BACKEND=$$backend .nox/keras3/bin/python benchmarks/keras_fit.py --measure $$what || exit 1; \
	done; KERAS_BACKEND=tensorflow .nox/tf/bin/python benchmarks/keras_fit.py --measure $$what || exit 1; done
	@.nox/keras3/bin/python benchmarks/torch_ddp.py
	@for backend in torch jax; do KERAS_BACKEND=$$backend .nox/keras3/bin/python benchmarks/strangers.py || exit 1; done
	@KERAS_BACKEND=tensorflow .nox/tf/bin/python benchmarks/strangers.py

bench-gpu: setup
	@$(TEST_ENV) $(VENV)/python benchmarks/zoo.py --framework lasagne $(ARGS)
	@if [ -z '$(GPU_PYTHON)' ]; then \
	    echo 'left out: Keras; GPU_PYTHON=/path/to/python names a Python with Keras 3, torch and JAX for CUDA'; \
	else for backend in torch jax; do \
	    '$(GPU_PYTHON)' benchmarks/zoo.py --framework $$backend $(ARGS) || exit 1; \
	    KERAS_BACKEND=$$backend '$(GPU_PYTHON)' benchmarks/keras_gpus.py || exit 1; \
	done; fi

dist: setup
	@$(NOX) -s dist -- $(ARGS)

docs: setup
	@$(NOX) -s docs

readme: setup
	@$(NOX) -s readme

clean:
	rm -rf build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis platoon_base/_*.so
	find . -path './.venv*' -prune -o -path ./.nox -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .nox .cache
