# The developer's commands. `make` alone lists them.
#
# Everything goes through cargo, so CARGO_TARGET_DIR and the other cargo variables mean what they always mean.

.DEFAULT_GOAL := help
COMMANDS := help setup setup-build demo demo-page test test-dpdk page page-test lint bench bench-quick bench-capture bench-shed bench-ab papers verify soak docs package crate clean
.PHONY: $(COMMANDS)

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## check for Rust, a C compiler, libpcap and the tools of the tests (as root: install all but Rust)
	@scripts/setup.sh test

setup-build:
	@scripts/setup.sh build

demo: ## build, and see the main job work: a trigger, and what happened before it (under a minute)
	@scripts/setup.sh demo
	@scripts/demo.sh

demo-page: ## record generated traffic until ^C, and print the address of the web page
	@scripts/setup.sh build
	@scripts/demo.sh page

test: setup ## every test that needs no special hardware; as root also those in network namespaces
	@scripts/test.sh

test-dpdk: setup-build ## lint and tests of the DPDK engine, where libdpdk-dev is installed
	@scripts/dpdk.sh

page: ## build the web page of page/ into crates/api/page/ (with Node and npm)
	@scripts/page.sh build

page-test: setup ## test the web page in Chromium against a recorder, as root
	@scripts/page.sh test

lint: setup-build ## formatting, clippy, documentation, dependencies, file sizes
	@scripts/lint.sh

bench: setup-build ## every benchmark: queues, memory, latency, then files and filters (a quarter of an hour, twice that where figures are unsteady)
	@scripts/bench.sh full

bench-quick: setup-build ## its own tests, then the rows that ring and filters are judged by, into bench/results.json of the target directory (ROWS=ring selects)
	@scripts/bench.sh quick

bench-capture: setup ## live capture over veth, as root: processor time, losses, rates without loss and time stamps of engines and other programs (a quarter of an hour, likewise)
	@scripts/bench.sh capture

bench-shed: setup ## what Suricata finds after overload, as root over veth, by rate and shedding algorithm (half an hour; QUICK=1 is brief)
	@scripts/bench.sh shed

papers: ## every figure of the papers next to ours, as root also those on live traffic; continues an interrupted run (two hours; QUICK=1 is brief)
	@scripts/setup.sh papers
	@scripts/bench.sh papers

# `make bench-ab REV`: make takes REV for a goal of its own, which does nothing.
ifeq ($(firstword $(MAKECMDGOALS)),bench-ab)
REV := $(or $(word 2,$(MAKECMDGOALS)),$(REV))
ifneq ($(filter $(REV),$(COMMANDS)),)
$(error make bench-ab REV: $(REV) is a command. Write refs/heads/$(REV) for a branch of this name)
endif
$(eval .PHONY: $(REV))
$(eval $(REV):;@:)
endif
bench-ab: setup-build ## compare this checkout with a commit, in turns: make bench-ab REV (ROUNDS=5, ROWS, WHAT=capture)
	@scripts/bench-ab.sh "$(REV)"

verify: setup-build ## the slow checks: ring, filters, fuzzing, the API's document, sanitizers (half an hour, STRESS_SECONDS=600)
	@scripts/verify.sh

soak: setup-build ## record generated traffic for minutes, check every counter (SOAK_SECONDS=120); as root the long live tests too
	@scripts/soak.sh

docs: ## the book of docs/, as HTML (with mdBook)
	@scripts/docs.sh

package: setup-build ## a Debian package, and a container image where docker or podman runs
	@scripts/package.sh

crate: setup-build ## the crate retroscope-ring as others get it: its package; its interface, compared with a commit (REV)
	@scripts/crate.sh $(REV)

clean: ## remove what was built
	@cargo clean
