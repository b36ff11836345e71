# The developer's commands. `make` alone lists them.
#
# All builds use cargo, so CARGO_TARGET_DIR and the other cargo variables work as usual.

.DEFAULT_GOAL := help
COMMANDS := help setup setup-build demo demo-page test test-dpdk page page-test lint bench bench-quick bench-capture bench-shed bench-ab papers verify soak docs package crate clean
.PHONY: $(COMMANDS)

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## check for Rust, a C compiler, libpcap and the tools of the tests (as root: install all except Rust)
	@scripts/setup.sh test

setup-build:
	@scripts/setup.sh build

demo: ## build, and show the main job: a trigger, and the packets before it (under a minute)
	@scripts/setup.sh demo
	@scripts/demo.sh

demo-page: ## record generated traffic until ^C, and print the address of the web page
	@scripts/setup.sh build
	@scripts/demo.sh page

test: setup ## run all tests that need no special hardware; as root also those in network namespaces
	@scripts/test.sh

test-dpdk: setup-build ## lint and test the DPDK engine (with libdpdk-dev)
	@scripts/dpdk.sh

page: ## build the web page of page/ into crates/api/page/ (with Node and npm)
	@scripts/page.sh build

page-test: setup ## test the web page in Chromium against a recorder, as root
	@scripts/page.sh test

lint: setup-build ## check formatting, clippy lints, documentation, dependencies, prose and scripts
	@scripts/lint.sh

bench: setup-build ## run the benchmarks of ring, filters, flows, recorder and capture files (15 minutes, 30 if figures are unsteady)
	@scripts/bench.sh full

bench-quick: setup-build ## run the benchmarks' tests and the judged rows of ring and filters, into bench/results.json of the target directory (ROWS=ring selects)
	@scripts/bench.sh quick

bench-capture: setup ## measure live capture over veth, as root: processor time, losses, lossless rates and time stamps of engines and other programs (15 to 30 minutes)
	@scripts/bench.sh capture

bench-shed: setup ## measure what Suricata finds after overload, as root over veth, by rate and shedding algorithm (half an hour; QUICK=1 is brief)
	@scripts/bench.sh shed

papers: ## measure every figure of the papers, as root also on live traffic; continues an interrupted run (two hours; QUICK=1 is brief)
	@scripts/setup.sh papers
	@scripts/bench.sh papers

# In `make bench-ab REV`, make takes REV for another goal, which must do nothing.
ifeq ($(firstword $(MAKECMDGOALS)),bench-ab)
REV := $(or $(word 2,$(MAKECMDGOALS)),$(REV))
ifneq ($(filter $(REV),$(COMMANDS)),)
$(error make bench-ab REV: $(REV) is a command. Write refs/heads/$(REV) for a branch of this name)
endif
$(eval .PHONY: $(REV))
$(eval $(REV):;@:)
endif
bench-ab: setup-build ## compare the speed of this checkout and of a commit: make bench-ab REV (ROUNDS=5, ROWS, WHAT=capture)
	@scripts/bench-ab.sh "$(REV)"

verify: setup-build ## run the slow checks: ring, filters, fuzzing, the API's document, sanitizers (half an hour, STRESS_SECONDS=600)
	@scripts/verify.sh

soak: setup-build ## record generated traffic for minutes, and check all counters (SOAK_SECONDS=120); as root also the long live tests
	@scripts/soak.sh

docs: ## build the book of docs/ as HTML (with mdBook)
	@scripts/docs.sh

package: setup-build ## build a Debian package, and a container image if docker or podman runs
	@scripts/package.sh

crate: setup-build ## check the crate retroscope-ring: its package, and its public API against a commit (REV)
	@scripts/crate.sh $(REV)

clean: ## remove all build results
	@cargo clean
