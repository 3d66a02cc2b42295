# Begin with `make demo` or `make test`: each sets up the environment that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Shoal installed with its C extensions, as in the images. Benchmarks measure this installation.
COMPILED := $(CURDIR)/.venvs/compiled
# Processes of pytest. Tests often wait for processes and sockets: three at once use two cores fully. PyTorch's threads
# busy-wait for each other, so tests set OMP_NUM_THREADS=1.
TEST_PROCESSES ?= 3
# Processes of `make e2e`. Each has its own embedded cluster; another cluster has only one.
E2E_PROCESSES ?= $(if $(KUBEBUILDER_ASSETS)$(SHOAL_E2E_KUBECONFIG),0,2)
# The build of torch: auto, cpu, or pip (pip's default). See install.py.
TORCH ?= auto
export PYTHONPATH := client:local:operator:proxy:runtime:schema:.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# The project's own files. Checks ignore other files in a clone, such as models and notes.
SOURCES := benchmarks client docs/hooks.py e2e examples local monitoring operator proxy release runtime schema tests compile.py images.py install.py pyproject.toml
TEXTS := $(SOURCES) .ci .github .pre-commit-config.yaml charts crds docs CHANGELOG.md CODE_OF_CONDUCT.md CONTRIBUTING.md Dockerfile Makefile README.md RELEASING.md SECURITY.md constraints.txt glossary.txt mkdocs.yml publisher.toml

# Replaced words and phrases (glossary.txt). The phrases of several words match before single words.
PHRASES := $(shell sed -n 's/->.*//; / /p' glossary.txt | paste -sd '|')
PLAIN := README.md CODE_OF_CONDUCT.md CONTRIBUTING.md CHANGELOG.md RELEASING.md SECURITY.md docs benchmarks client e2e examples local monitoring operator proxy release runtime schema

PARTS := client local operator proxy runtime schema
.PHONY: demo env test $(addprefix test-,$(PARTS)) test-all test-uncovered test-compiled test-interop test-images e2e check format lint types contracts guard site generated messages pictures uplot bench-batch bench-coldstart bench-gpu bench-gpu-wheels bench-graphs bench-operator bench-policy bench-rollout bench-scaling bench-serve bench-peers bench-models soak coverage mutants dist images release-check release-attest pins clean

env: $(VENV)/.installed ## Install Shoal and the tools of its tests into .venv

demo: $(VENV)/.demo ## Deploy a real image classifier, and send it 200 pictures without and with batches
	$(BIN)/python -m examples.demo

# Tests that call the pure cores directly. Coverage doubles their duration, so `make test` measures it only for COVERAGE=1.
CORE_TESTS := $(addprefix tests/,client/benching client/serving client/watching client/wire contract/test_settings.py contract/test_logs.py operator \
  proxy/batching proxy/codecs proxy/bodies proxy/explaining proxy/graph proxy/lifecycle proxy/model proxy/simulator proxy/test_settings.py \
  runtime/batches runtime/codecs $(addprefix runtime/offline/test_,cells.py csv_rows.py dispatch.py inputs.py \
  json_lines.py mapping.py operands.py records.py results.py row_filter.py schemas.py shards.py tables.py windows.py) \
  runtime/execution/test_pipeline.py runtime/test_settings.py schema)

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder

test: check $(if $(COVERAGE),coverage test-uncovered,test-all) ## Run all checks, and all tests without a cluster; COVERAGE=1 measures the cores

test-all: $(VENV)/.installed
	$(PYTEST) --ignore=tests/interop

$(addprefix test-,$(PARTS)): test-%: $(VENV)/.installed ## (test-client, test-local, ...) Run the tests of one component
	$(PYTEST) tests/$*

test-uncovered: $(VENV)/.installed
	$(PYTEST) -m integration $(CORE_TESTS)
	$(PYTEST) --ignore=tests/interop $(addprefix --ignore=,$(CORE_TESTS))

test-interop: $(VENV)/.installed ## Test with clients, registries and servers of other projects, each in its own environment
	$(PYTEST) tests/interop

# Of the runtime, only the tests of compiled modules.
COMPILED_TESTS := $(addprefix tests/,proxy contract runtime/batches runtime/codecs runtime/execution runtime/handlers runtime/http \
  runtime/tensors $(addprefix runtime/,startup/test_warmup.py test_faults.py test_item_log.py test_main.py))

test-compiled: $(COMPILED)/.built ## Test proxy and runtime on their C extensions
	OMP_NUM_THREADS=1 PYTHONPATH=$(COMPILED):. $(BIN)/python -m pytest --override-ini='pythonpath=$(COMPILED) .' \
	  --numprocesses=$(TEST_PROCESSES) --dist=loadfile $(COMPILED_TESTS)

coverage: $(VENV)/.installed ## Measure the coverage of the pure cores; fails below `fail_under` of pyproject.toml
	$(PYTEST) --quiet -m 'not integration' --cov --cov-report=term $(CORE_TESTS)

mutants: $(VENV)/.installed ## Change one token of the pure cores, a hundred times, and list the changes that no test detects
	nice -n 19 $(BIN)/python -m tests.project.mutants

e2e: $(VENV)/.installed ## Test the product in a cluster: embedded, or set by KUBEBUILDER_ASSETS or SHOAL_E2E_KUBECONFIG
	$(BIN)/python -m pytest e2e --timeout=300 --numprocesses=$(E2E_PROCESSES) --dist=loadfile --no-loadscope-reorder

test-images: $(VENV)/.installed ## Build and run the images with docker, podman or buildah; SHOAL_IMAGES_TAG selects existing images
	SHOAL_IMAGES_BUILD=1 $(BIN)/python -m pytest e2e/test_images.py --timeout=300

check: $(VENV)/.installed ## Check format, lint, strict types, import contracts and the site
	@$(MAKE) --no-print-directory --jobs=2 --output-sync types lint contracts guard site

lint: $(VENV)/.installed
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/codespell $(TEXTS)
	$(BIN)/codespell --dictionary glossary.txt --regex "\b(?i:$(PHRASES))\b|[\w'-]+" $(PLAIN)

types: $(VENV)/.installed
	$(BIN)/mypy

# The variable silences the theme's announcement of its successor. docs/decisions explains the choice of the theme.
site: $(VENV)/.installed ## Build the documentation site into site/; a dead link or a page outside the navigation fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

contracts: $(VENV)/.installed
	$(BIN)/lint-imports

# A folder named operator that holds an __init__.py would shadow the standard library's module.
guard:
	@! git ls-files --cached --others --exclude-standard $(SOURCES) | grep -E '(^|/)operator/__init__\.py$$' \
	  || { echo 'operator/__init__.py shadows the standard library: remove it'; exit 1; }

format: $(VENV)/.installed
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

generated: $(VENV)/.installed ## Regenerate files from schema/ (CRDs, reference, tables of settings) and publisher.toml, and the dashboards
	$(BIN)/python -m shoal_schema.generate
	$(BIN)/python -m monitoring

pictures: $(VENV)/.installed ## Draw the dashboards of docs/how-to/monitoring.md from a real Prometheus, with services under load
	SHOAL_PICTURES=$(CURDIR)/docs/img $(BIN)/python -m pytest e2e/test_monitoring.py --timeout=400

# The charts of `shoal dashboard`. A test compares the files' hashes.
UPLOT := 1.6.32
uplot: ## Fetch uPlot from the npm registry
	mkdir -p .venvs/uplot
	cd .venvs/uplot && tar xzf "$$(npm pack --silent uplot@$(UPLOT))"
	cp $(addprefix .venvs/uplot/package/,LICENSE dist/uPlot.iife.min.js dist/uPlot.min.css) client/shoal/uplot/

# Generated with the major version of protobuf in constraints.txt: files of another version cause warnings.
messages: ## Regenerate the gRPC messages from their .proto
	$(PYTHON) -m venv .venvs/messages
	.venvs/messages/bin/pip install --quiet --disable-pip-version-check grpcio-tools==1.81.1
	cd proxy/shoal_proxy/rpc && $(CURDIR)/.venvs/messages/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. inference.proto

bench-%: export PYTHONPATH = $(COMPILED):$(CURDIR)

bench-batch: $(COMPILED)/.built ## Compare `shoal batch` with loops of torch and with Ray Data
	$(BIN)/python -m benchmarks.offline

bench-coldstart: $(COMPILED)/.built ## Measure the wall and CPU time of each step of a cold start
	$(BIN)/python -m benchmarks.coldstart

# A machine with a GPU may have no network. Then its own Python runs the benchmark, with the packages of `make bench-gpu-wheels`.
GPU_WHEELS := .venvs/gpu-wheels
GPU_PACKAGES := $(if $(wildcard $(GPU_WHEELS)),$(CURDIR)/.venvs/gpu,$(COMPILED))
# The machine's version of Python, for which the wheels are.
GPU_PYTHON ?= python3.12

bench-gpu: export PYTHONPATH = $(GPU_PACKAGES):$(CURDIR)
bench-gpu: $(GPU_PACKAGES)/.built ## Measure a GPU: PIECE=resnet (PIECE="bert mlp" for several), or FLAGS=--list, FLAGS=--report
	$(PYTHON) -m benchmarks.gpu $(if $(PIECE),--piece $(PIECE)) $(FLAGS)

bench-gpu-wheels: ## Fetch and build the wheels that a machine with a GPU and without a network needs
	rm -rf $(GPU_WHEELS) .venvs/gpu
	$(GPU_PYTHON) -m pip download --quiet --disable-pip-version-check --only-binary=:all: --constraint constraints.txt \
	  --dest $(GPU_WHEELS) --requirement benchmarks/gpu/requirements.txt
	SHOAL_COMPILE=1 $(GPU_PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(GPU_WHEELS) .

$(CURDIR)/.venvs/gpu/.built: $(GPU_WHEELS)
	rm -rf $(@D)
	$(PYTHON) -m pip install --quiet --no-index --find-links $(GPU_WHEELS) --target $(@D) --requirement benchmarks/gpu/requirements.txt
	$(PYTHON) -m pip install --quiet --no-index --find-links $(GPU_WHEELS) --target $(@D) --no-deps shoal
	touch $@

bench-graphs: $(COMPILED)/.built ## Compare a graph of two models with calls by hand and with Ray Serve
	$(BIN)/python -m benchmarks.graphs

bench-operator: $(COMPILED)/.built ## Measure the time from a changed spec to its patched child, idle writes, memory
	$(BIN)/python -m benchmarks.reconciling

bench-policy: $(COMPILED)/.built ## Compare batching policies, Shoal's and others', with the offline optimum
	$(BIN)/python -m benchmarks.policy

bench-rollout: $(COMPILED)/.built ## Measure rollouts: what a candidate costs clients, a whole canary, rows until wrong ones are rolled back
	$(BIN)/python -m benchmarks.rollout

bench-scaling: $(COMPILED)/.built ## Compare autoscaling algorithms and load balancing on simulated replicas
	$(BIN)/python -m benchmarks.scaling

bench-serve: $(COMPILED)/.built ## Measure requests per second and latency, and the model's own limit
	$(BIN)/python -m benchmarks.serve

bench-peers: $(COMPILED)/.built ## Measure the same models in other model servers, each in its own environment
	$(BIN)/python -m benchmarks.peers

bench-models: $(COMPILED)/.built ## Compare the served examples with a loop over the same inputs
	$(BIN)/python -m benchmarks.models

soak: export PYTHONPATH = $(COMPILED):$(CURDIR)
soak: $(COMPILED)/.built ## Attack a server while clients check each response; run property tests with other seeds; compare 100,000 results of table models with their libraries'
	$(BIN)/python -m benchmarks.soak
	GRPC_VERBOSITY=NONE OMP_NUM_THREADS=1 $(BIN)/python -m tests.oracle

# Only the packages of the demo; other targets add the rest.
$(VENV)/.demo: $(VENV)/.python pyproject.toml local/pyproject.toml constraints.txt
	@$(BIN)/python install.py demo --torch $(TORCH)
	@touch $@

$(VENV)/.installed: $(VENV)/.python pyproject.toml local/pyproject.toml constraints.txt
	@$(BIN)/python install.py dev --torch $(TORCH)
	@touch $@ $(VENV)/.demo

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'Shoal needs Python 3.11 or newer; set PYTHON=... to choose one'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo 'this Python has no venv module: apt-get install python3-venv, or set PYTHON=...'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

$(COMPILED)/.built: $(VENV)/.installed compile.py pyproject.toml local/pyproject.toml $(shell find client local operator proxy runtime schema -name '*.py')
	rm -rf $(COMPILED)
	SHOAL_COMPILE=1 $(BIN)/python -m pip install --quiet --no-deps --target $(COMPILED) . ./local
	touch $@

dist: $(VENV)/.installed ## Build an sdist and a pure wheel of each distribution
	rm -rf dist
	$(BIN)/python -m hatchling build --directory $(CURDIR)/dist
	cd local && $(abspath $(BIN))/python -m hatchling build --directory $(CURDIR)/dist

IMAGE_OPTIONS = $(if $(BASE),--base '$(BASE)') $(if $(CUDA),--cuda $(CUDA)) $(if $(BUILDER),--builder $(BUILDER)) \
  $(if $(PIP_CONF),--pip-conf '$(PIP_CONF)') $(if $(FLAGS),--flags='$(FLAGS)')

images: ## Build the images with docker, podman or buildah; fails above their size limits. BASE= CUDA= REGISTRY= TAG= ONLY=, and FLAGS= for the builder
	$(PYTHON) images.py build $(IMAGE_OPTIONS) $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(TAG),--tag $(TAG)) \
	  $(if $(EXTRAS),--extras $(EXTRAS)) $(ONLY)

RELEASE := .venvs/release
release-check: $(RELEASE)/.installed ## Build, publish to this machine and install all that a release publishes; BASE= CUDA= ONLY= FLAGS= as for images
	PYTHONPATH=. $(RELEASE)/bin/python -m release $(IMAGE_OPTIONS) $(ONLY)

release-attest: $(RELEASE)/.installed ## Write checksums, provenance and signatures of dist/release again
	PYTHONPATH=. $(RELEASE)/bin/python -m release --attest

$(RELEASE)/.installed: release/requirements.txt
	rm -rf $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check --requirement release/requirements.txt
	touch $@

# torch alone is pinned by hand: newer versions add gigabytes of unused packages.
pins: ## Renew constraints.txt with the newest versions that pyproject.toml allows
	$(PYTHON) -m venv .venvs/pins
	echo 'torch==2.13.0' > .venvs/torch.txt
	.venvs/pins/bin/python -m pip install --quiet --constraint .venvs/torch.txt --editable '.[dev]' --editable ./local
	.venvs/pins/bin/python -m pip freeze --exclude-editable | grep -v '^torch==' > .venvs/frozen.txt
	(cat .venvs/torch.txt .venvs/frozen.txt) > constraints.txt
	rm -rf .venvs/pins .venvs/torch.txt .venvs/frozen.txt

clean:
	rm -rf $(VENV) .venvs .mypy_cache .ruff_cache .pytest_cache .tools
