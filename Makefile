# Everything runs in .venv, which make builds with this Python. Another one: make tour PYTHON=python3.12
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
TORCH  := 2.13.0
SHELL  := bash

# Of what pip tells, a line for each download and for the result; errors come in full.
PIP  := set -o pipefail; $(RUN) -m pip install --disable-pip-version-check --constraint constraints.txt --editable
SHOW := | grep --line-buffered -E '^ +Downloading|^Installing|^Success'

# Each of these files says "installed"; a change of the two files on the right installs again.
CORE      := $(VENV)/.core
DEV       := $(VENV)/.dev
NOTEBOOKS := $(VENV)/.notebooks
GPU       := $(VENV)/.gpu

.DEFAULT_GOAL := help
.PHONY: help tour dev test quick lint debug debug-kernel lab notebooks docs bench gpu sanitize mutants lock clean

help:  ## this table
	@echo "FlashAttention you can read, step through, measure and trust."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Needs Python 3.11, 3.12 or 3.13 (another one: make tour PYTHON=python3.12). The first call installs into .venv."

tour: $(CORE)  ## start here: every algorithm on real queries, keys and values, each beside its error bound
	@$(RUN) -m fa_ref tour && FA_REF_CUDA=$${FA_REF_CUDA:-sim} $(RUN) -m cuda_kernels tour

dev: $(DEV)  ## install what tests, pictures and notebooks need, and run nothing

test: $(DEV)  ## every test (15 minutes or more)
	@$(RUN) -m pytest

quick: $(DEV)  ## the inner loop: every test but the slow ones
	@$(RUN) -m pytest -m "not slow"

lint: $(DEV)  ## ruff
	@$(RUN) -m ruff check .

debug: $(CORE)  ## step through the tiling loop of fa_ref/fa2.py; first says how, in pdb, VS Code and JupyterLab
	@echo "Three ways to stop inside the tiling loop of fa_ref/fa2.py:"
	@echo "  VS Code     click left of a line in fa_ref/fa2.py, press F5, choose 'Step through FlashAttention-2'"
	@echo "  JupyterLab  make lab; a new notebook, bug icon on, run: import fa_ref"
	@echo "              click left of a line in Kernel Sources > fa_ref/fa2.py, run: %run -m fa_ref debug --run"
	@echo "  pdb         now, here:"
	@echo
	@$(RUN) -m fa_ref debug

debug-kernel: $(CORE)  ## the same in a GPU kernel, without a GPU: cuda_kernels/fa2.py in the simulator
	@FA_REF_CUDA=sim $(RUN) -m cuda_kernels debug

lab: $(NOTEBOOKS)  ## JupyterLab in this folder
	@$(RUN) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root)

notebooks: $(DEV)  ## run the notebooks from their sources and write the .ipynb anew (2 minutes)
	@$(RUN) notebooks/build.py

docs: $(DEV)  ## the site: side by side, notebooks, API, players and all pages, offline (2 minutes)
	@$(RUN) docs/site/build.py

bench: $(DEV)  ## time and memory of the loops, as ratios to standard attention and to torch; simulator, ledger, player
	@$(RUN) -m fa_ref bench && FA_REF_CUDA=sim $(RUN) -m cuda_kernels speed
	@$(RUN) -m pytest -q -s tests/test_player.py tests/test_player_page.py -k "megabytes or within_a_second"

gpu: a-gpu $(GPU)  ## all about the kernels that needs a GPU: the kit, streams, large offsets, time, memory
	@FA_REF_CUDA=gpu $(RUN) tests/gpu_check.py

sanitize: a-gpu $(GPU)  ## compute-sanitizer over small problems of every kernel: memory, races, barriers
	@FA_REF_CUDA=gpu $(RUN) tests/sanitize.py

.PHONY: a-gpu
a-gpu:
	@nvidia-smi -L > /dev/null 2>&1 || { echo "this needs an NVIDIA GPU, and nvidia-smi finds none here"; exit 1; }

mutants: $(DEV)  ## plant small faults in the algorithms and count how many the tests catch (under an hour)
	@$(RUN) tests/mutants.py

lock:  ## write constraints.txt anew: the newest versions that pyproject.toml allows, and this TORCH
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
# without the extra "gpu": the CUDA libraries differ from machine to machine
	$(VENV)-lock/bin/pip install --editable '.[dev,docs,notebooks]' torch==$(TORCH)
	echo "# Exact versions of all that make installs. Written by make lock." > constraints.txt
	$(VENV)-lock/bin/pip list --format=freeze --exclude-editable --exclude pip \
	  | grep -vE '^(nvidia|cuda-toolkit|triton)' | sed 's/+.*//' >> constraints.txt
	rm -rf $(VENV)-lock

clean:  ## remove what make made: .venv and caches
	rm -rf $(VENV) $(VENV)-lock build *.egg-info .hypothesis notebooks/.hypothesis .pytest_cache .ruff_cache
	find fa_ref cuda_kernels tests docs notebooks -name __pycache__ -prune -exec rm -rf {} +

$(CORE): pyproject.toml constraints.txt
	@found=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null || echo missing); \
	case $$found in 3.11|3.12|3.13) ;; *) \
	  echo "Python 3.11, 3.12 or 3.13 is needed; $(PYTHON) is $$found. Name another: make PYTHON=python3.12"; exit 1;; esac
	@echo "== .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "== installing the core: numpy, ml_dtypes, numba, hypothesis, rich"
	@$(PIP) . $(SHOW)
	@touch $@

$(DEV): $(CORE)
	@echo "== installing what the tests need: pytest, ruff, JupyterLab, Sphinx, torch (200 MB or more, once)"
	@$(PIP) '.[dev,docs,notebooks]' $(SHOW)
	@touch $@

$(GPU): $(DEV)
	@echo "== installing the CUDA libraries that the kernels need"
	@$(PIP) '.[gpu]' $(SHOW)
	@touch $@

$(NOTEBOOKS): $(CORE)
	@echo "== installing JupyterLab and matplotlib"
	@$(PIP) '.[notebooks]' $(SHOW)
	@touch $@
