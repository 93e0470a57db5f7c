# `make test`, `make demo` and `make check` need make and Python 3.11 or later; the rest they install into .venv.
# `make PYTHON=...` names the interpreter to use; `make test PYTEST_ARGS=...` passes the rest on to pytest.

PYTHON =
PYTEST_ARGS =
VENV = .venv
INSTALLED = $(VENV)/.installed
# An environment whose interpreter is gone is made anew.
BROKEN := $(shell $(VENV)/bin/python -c '' 2>/dev/null || echo broken)

.PHONY: test demo check chaos broken
.DELETE_ON_ERROR:

test: $(INSTALLED)
	@$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

demo: $(INSTALLED)
	@$(VENV)/bin/python -m legato demo

check: $(INSTALLED)
	$(VENV)/bin/python -m ruff check
	$(VENV)/bin/python -m ruff format --check
	$(VENV)/bin/python -m mypy
	$(VENV)/bin/lint-imports --no-logo

# Asks the real service where its key is in the environment, else the one in examples/local_gemini.
example-%: $(INSTALLED)
	@PYTHONPATH=examples $(VENV)/bin/python -m $*

# SEED=... makes the same draws again, RUNS=... is how many turns go through faults on each journal.
chaos: $(INSTALLED)
	@PYTHONPATH=tests $(VENV)/bin/python -m chaos $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS))

# Shell builtins and Python alone: nothing else may be there. The stamp is written last.
$(INSTALLED): pyproject.toml requirements.lock $(BROKEN)
	@if [ "$(BROKEN)" ]; then \
	  for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "Legato needs Python 3.11 or later; $(or $(PYTHON),what the PATH has) is not that." >&2; \
	    echo "Install it (Debian, Ubuntu: apt install python3 python3-venv; Fedora: dnf install python3;" >&2; \
	    echo "macOS: brew install python; others: python.org), or name one: make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	  fi; \
	  if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$found has no venv or ensurepip. Install them (Debian, Ubuntu: apt install python3-venv)," >&2; \
	    echo "or name another Python: make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	  fi; \
	  echo "Creating $(VENV) with $$found ..."; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@echo "Installing the locked versions into $(VENV): some 350 MB, which may take minutes ..."
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check -c requirements.lock setuptools
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check -c requirements.lock --no-build-isolation -e '.[dev,adk,gemini]'
	@: > $@
