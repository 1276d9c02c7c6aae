# krablet's chores. `make help` lists them.

SHELL      := /bin/bash
CARGO      ?= cargo
SEEDS      ?= 2000
SIM_FLAGS  := $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS))
# Tests are chosen by target and not by package, so that the features of what they stand on, and with them what is built, stay the
# same.
tests_of    = $(foreach crate,$(1),$(patsubst crates/$(crate)/tests/%.rs,%,$(wildcard crates/$(crate)/tests/*.rs)) \
              $(patsubst crates/$(crate)/tests/%/main.rs,%,$(wildcard crates/$(crate)/tests/*/main.rs)))
QUICK_TESTS := $(addprefix --test ,$(sort $(call tests_of,$(filter-out e2e sim testbed,$(notdir $(wildcard crates/*))))))
BED_TESTS   := $(addprefix --test ,$(call tests_of,testbed))
NODE_TESTS  := $(addprefix --test ,$(call tests_of,e2e))
CASES      ?= 1000000
FUZZED     := access checkpoint config images linux logs manifest objects pod runtime server volumes yaml
# By their names, for not every test that draws its cases is about what comes from outside.
FUZZ_TESTS := any_ never_panics nearly_ on_random on_yaml on_mutated on_odd parts_make_the_whole nobody_comes_in no_name_leads_out \
              no_bytes_are no_query_becomes only_a_plain_yes nothing_but_the_handshake what_is_quoted text_without_a_dollar what_was_answered what_was_written words_of written_again
LAB        := $(CARGO) run --quiet --package krablet-testbed --bin krablet-lab --
# Clippy is a compiler that looks closer: whatever is built for tests goes through it, once, as `cargo clippy` would have it.
LINTED     := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings
# Without a release's allocator, which takes longer to build than all the rest.
TESTED     := $(CARGO) test --workspace --no-default-features
# What the test bed takes from the distribution, as package:command; the lists of crates/testbed/src/packages.rs, and a test compares.
BED_NEEDS  := runc:runc busybox-static:busybox iproute2:ip iptables:iptables gcc:gcc
VM_NEEDS   := qemu-system-x86:qemu-system-x86_64 debootstrap:debootstrap e2fsprogs:mke2fs busybox-static:busybox
NEEDS       = $(BED_NEEDS) $(VM_NEEDS)
# The same cases each time: a case found by chance is to be found on purpose, by whoever sets another seed.
export PROPTEST_RNG_SEED ?= 1
export KRABLET_BIN ?= $(CURDIR)/target/release/krablet
# In memory: what a disk makes of a thousand files that came and went is not to be measured.
BENCH_BEDS := $(if $(wildcard /dev/shm),/dev/shm/krablet,/var/tmp/krablet)

.DEFAULT_GOAL := help
.PHONY: help run test quick-part release-part cluster-part alone-part check lint rooms unit sim sim-tests fuzz e2e bench order build docs clean tools ground

help: ## list the chores
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: NEEDS = $(if $(RUNTIME),busybox-static:busybox gcc:gcc,$(BED_NEEDS))
run: tools ground build ## bring up a private containerd and a krablet node on examples/, and watch it
	@$(LAB) run

# The release's linker takes one core for minutes: the quick part goes on beside it.
test: tools ground ## everything that must pass: lint, unit tests, simulation, end-to-end tests
	@$(MAKE) --no-print-directory -j2 --output-sync=line quick-part release-part
	@$(MAKE) --no-print-directory e2e

quick-part:
	@+$(MAKE) --no-print-directory lint
	@+$(MAKE) --no-print-directory unit

release-part:
	@+$(MAKE) --no-print-directory build
	@+$(MAKE) --no-print-directory sim-tests
	@+$(MAKE) --no-print-directory sim

check: tools lint unit ## the quick part of `make test`: lint and unit tests

lint: rooms ## format, clippy with warnings denied, room rules
	$(CARGO) fmt --all --check
	$(LINTED) $(TESTED) --all-targets --no-run

rooms: ## which crate may know which; what the pure ones must not touch
	@$(CARGO) xtask rooms

unit: ## unit tests of every crate
	$(LINTED) $(TESTED) --lib --bins $(QUICK_TESTS)

sim: ## random schedules in the simulated world: SEEDS=100000, or SEED=n to replay one
	$(CARGO) run --quiet --profile sim --package krablet-sim -- $(SIM_FLAGS)

sim-tests: ## that the simulation notices what is broken on purpose, and is the same every time
	$(CARGO) test --profile sim --package krablet-sim --test '*'

fuzz: ## whatever reads what comes from outside, against random input: CASES=1000000
	PROPTEST_CASES=$(CASES) $(CARGO) test --profile fuzz $(FUZZED:%=--package krablet-%) --lib --tests -- $(FUZZ_TESTS)

# The nodes of a cluster mostly wait and leave half of two cores: those without one, and the virtual machine, go beside them.
e2e: ground build ## end-to-end tests on a real containerd, and in a VM with systemd and cgroup v2
	$(LINTED) $(TESTED) --no-run $(BED_TESTS) $(NODE_TESTS)
	@$(MAKE) --no-print-directory -j2 cluster-part alone-part

cluster-part:
	$(LINTED) $(TESTED) --test cluster

alone-part:
	$(LINTED) $(TESTED) --test e2e
	$(LINTED) $(TESTED) $(BED_TESTS)

bench: NEEDS = $(BED_NEEDS)
bench: tools ground build ## krablet against the raw runtime, with the promises of SPECIFICATION.md; CLUSTER=1, SERVER=1: against the kubelet
	KRABLET_BEDS=$(BENCH_BEDS) $(CARGO) run --quiet --release --package krablet-bench -- $(if $(CLUSTER),--only cluster) $(if $(SERVER),--only server) $(BENCH)

order: NEEDS = $(BED_NEEDS)
order: tools ground ## which functions lie side by side in the binary: to be found out anew before a release
	$(CARGO) rustc --release --package krablet --bin krablet -- -C strip=none
	$(CARGO) run --quiet --profile sim --package krablet-bench -- --order crates/krablet/order.txt

build: tools ## the release binary, target/release/krablet
	$(CARGO) build --release --package krablet
	@$(CARGO) xtask size

docs: ## write the documents that are generated from code
	KRABLET_UPDATE_DOCS=1 $(CARGO) test --quiet --package krablet-config --package krablet-metrics

clean: ## remove build results and whatever a killed test bed left on the machine
	-@$(LAB) clean
	$(CARGO) clean

# What the chores themselves need; the test bed installs its own parts when a test asks for them.
tools:
	@for tool in cargo rustc go cc; do \
	  command -v $$tool >/dev/null || { echo "krablet needs $$tool: install Rust, Go and a C compiler first" >&2; exit 1; }; \
	done

# Whether this machine and user can have a test bed: told now, and not after half an hour of building and testing. The bed
# installs what is missing by itself, if it may.
ground:
	@missing=; \
	for need in $(sort $(NEEDS)); do \
	  PATH="$$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v $${need#*:} >/dev/null || missing="$$missing $${need%%:*}"; \
	done; \
	if [ "$$(id -u)" != 0 ]; then \
	  echo "A test bed needs root rights: it makes cgroups, mounts and network interfaces. \`make check\` does without." >&2; \
	  [ -z "$$missing" ] || echo "It also needs packages that are missing: apt-get install --no-install-recommends$$missing" >&2; \
	  exit 1; \
	elif [ -n "$$missing" ] && ! command -v apt-get >/dev/null; then \
	  echo "Missing packages, and no apt-get to install them with:$$missing" >&2; exit 1; \
	fi
