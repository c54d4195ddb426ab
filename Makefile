# The same commands for people and for CI. Each installs what it needs first.
PYTHON ?= python3
VENV := .venv
TRIAL := .venv-trial
TORCH := .venv-torch
TYPESCRIPT := .venv-node/node_modules/typescript
COMPAT := .venv-compat-0.38.1 .venv-compat-0.21.0
UV := $(VENV)/bin/uv
# Of the commits since 72 characters were agreed upon. The time of day belongs there: Git takes that of now otherwise.
LONG_SUBJECTS = git log --since=2026-11-24T03:00:00Z --format=%s 2> /dev/null | grep -E '.{73}'
# The parts of `make check`, of which `make --jobs 2 check` has two at work at a time: the longest first.
CHECKS := check-types check-pages check-code check-modules check-generated check-words

# Where it is set, as in some images, each process of the tests would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test environments programs test-deploy test-kubernetes test-temporal test-gpu soak soak-versions check $(CHECKS) bench bench-data image-requirements install install-dev format docs site changelog clean

demo: install
	@$(VENV)/bin/python examples/digits/demo.py

# What the tests need beside $(VENV): environments, and programs such as PostgreSQL.
environments: $(COMPAT:=/.installed) $(TORCH)/.installed

programs: install-dev
	@$(VENV)/bin/python -m tests.prepare

# Two at a time, and light ones beside them, as tests/streams.py parts them; the slowest twenty are named at the end.
test: install-dev environments programs
	@$(VENV)/bin/python -m pytest --numprocesses 3 --no-loadscope-reorder --durations 20 --durations-min 1 -m 'not long' --ignore tests/temporal --ignore tests/gpu

# The Helm chart, units of systemd, Compose, Terraform, images and Prometheus' rules. Helm, promtool and OpenTofu are compiled the first time.
test-deploy: install-dev
	@$(VENV)/bin/python -m tests.deploy.programs
	@$(VENV)/bin/python -m pytest tests/deploy

# Pods of a real kubelet, on a cluster that these tests compile, start and take down: root is needed, and containerd is installed.
test-kubernetes: install-dev
	@$(VENV)/bin/python -m pytest tests/kubernetes

# A search, and the chaos, on a Temporal of four services on PostgreSQL, which is built once, from its Go module: 5 to 10 minutes.
test-temporal: install-dev
	@$(VENV)/bin/python -m pytest tests/temporal

# A cluster whose slot is this machine's GPU, of NVIDIA's: its driver is there, and PyTorch's wheels bring the rest.
test-gpu: install-dev
	@$(VENV)/bin/python -m pytest tests/gpu

# The chaos tests and killed runs of the Trainer in their long form, what runs a platform or asks the API on both engines, and what is marked `long`: hours. UNDETERRED_CHAOS_SEED runs one again.
soak: install-dev
	@UNDETERRED_SOAK=1 $(VENV)/bin/python -m pytest -s tests/chaos tests/integration tests/e2e tests/kubernetes tests/docs/test_tutorials.py harness/tests/test_pytorch_resume.py

# The lower ends of what the harness' extras take, and Keras on TensorFlow: environments of their own, 6 GB.
soak-versions: install-dev
	@$(VENV)/bin/python -m tests.versions

check: $(CHECKS)

$(CHECKS): install-dev

check-types:
	$(VENV)/bin/pyright
	$(VENV)/bin/ty check --quiet --python $(VENV) tests bench

check-pages:
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

check-code:
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports

check-modules: $(TYPESCRIPT)
	$(VENV)/bin/node $(TYPESCRIPT)/bin/tsc -p web/tsconfig.json
	$(VENV)/bin/python -m web.vendor --check

check-generated:
	$(VENV)/bin/python -m harness.twins --check
	$(VENV)/bin/python -m docs.generate --check

check-words:
	$(VENV)/bin/python -m docs.words
	@$(VENV)/bin/towncrier build --draft --version next > /dev/null
	@! $(LONG_SUBJECTS) || { echo "the subject of a commit has more than 72 characters: say less there, and more below"; exit 1; }

bench: install-dev
	$(VENV)/bin/python -m bench

# A large database to try things on: make bench-data URL=postgresql+psycopg://user:password@host/empty SCALE=0.01
SCALE ?= 1
bench-data: install-dev
	$(VENV)/bin/python -m bench.data $(URL) --scale $(SCALE)

docs: install-dev
	$(VENV)/bin/python -m docs.generate

# The documentation as pages: build/site/index.html
site: docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# What the server's image is made of, by hashes, and what lists it there.
COMPILE = $(UV) pip compile --quiet --generate-hashes --no-annotate --no-header --python-version 3.11
image-requirements: install-dev
	@echo 'setuptools>=77' | $(COMPILE) pyproject.toml - --extra server --extra optuna --extra tracing -c constraints.txt --no-emit-package undeterred-harness -o deploy/images/server.requirements.txt
	@echo 'cyclonedx-bom>=7,<8' | $(COMPILE) - -o deploy/images/sbom.requirements.txt

# What changelog.d comes to.
changelog: install-dev
	@$(VENV)/bin/towncrier build --draft --version next

format: install-dev
	$(VENV)/bin/python -m harness.twins
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

install: $(VENV)/.installed $(TRIAL)/.installed

install-dev: $(VENV)/.installed-dev $(TRIAL)/.installed

$(UV):
	@echo "making the environment $(VENV) …"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv

# Byte code is compiled now: every start of `det`, of the API and of a trial would pay for it otherwise. What is there for
# tests is compiled when it is first imported, which is a small part of it.
$(VENV)/.installed: $(UV) pyproject.toml harness/pyproject.toml constraints.txt
	@echo "installing Undeterred into $(VENV) …"
	@$(UV) pip install --quiet --compile-bytecode --python $(VENV)/bin/python -c constraints.txt -e ./harness -e '.[server]'
	@$(VENV)/bin/python -m compileall -q workflows activities database api cli workers harness/determined
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the tools for tests into $(VENV) …"
	@$(UV) pip install --quiet --python $(VENV)/bin/python -c constraints.txt -e ./harness -e '.[dev]'
	@touch $@

# Trials run in an environment of their own: the application is never installed beside users' code. With pip for their
# start-up hooks: what those install goes into a layer over it.
$(TRIAL)/.installed: $(UV) harness/pyproject.toml constraints.txt
	@echo "installing the trials' environment into $(TRIAL) …"
	@$(PYTHON) -m venv --without-pip $(TRIAL)
	@$(UV) pip install --quiet --compile-bytecode --python $(TRIAL)/bin/python -c constraints.txt -e ./harness scikit-learn pip
	@touch $@

# PyTorch and what is built upon it beside the harness, for trials that train with it: 5 GB, as its wheels for Linux carry CUDA.
$(TORCH)/.installed: $(UV) harness/pyproject.toml constraints.txt
	@echo "installing PyTorch into $(TORCH) (5 GB) …"
	@$(PYTHON) -m venv --without-pip $(TORCH)
	@$(UV) pip install --quiet --python $(TORCH)/bin/python -c constraints.txt -e './harness[notebook,tensorboard,pytorch,deepspeed,transformers,lightning,keras]' scikit-learn pip
	@touch $@

# The checker of the types in the web UI's modules. Nothing of it is served, and nothing is built by it.
$(TYPESCRIPT): web/package.json $(VENV)/.installed-dev
	@mkdir -p .venv-node && cp web/package.json .venv-node/
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH $(VENV)/bin/npm install --silent --no-package-lock --no-audit --no-fund --prefix .venv-node
	@touch $@

# Determined's own clients as they were published, for tests/compat.
.venv-compat-%/.installed: tests/compat/requirements-%.txt $(UV)
	@echo "installing the published client $* into .venv-compat-$* …"
	@$(PYTHON) -m venv --without-pip .venv-compat-$*
	@$(UV) pip sync --quiet --python .venv-compat-$*/bin/python $<
	@touch $@

clean:
	rm -rf $(VENV) $(TRIAL) $(TORCH) $(COMPAT) .venv-lowest .venv-tensorflow .venv-node .pytest_cache .ruff_cache .hypothesis
