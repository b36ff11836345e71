#!/usr/bin/env bash
# Runs all tests that need no special hardware. Without root, a tool or a file that a test needs,
# the test prints SKIP.

. "$(dirname "$0")/lib.sh"

step "tests"
[ "$(id -u)" -eq 0 ] || echo "SKIP: tests in network namespaces (not root)" >&2
# Without --show-output, the harness hides the SKIP lines of passing tests.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Examples have no tests: clippy compiles them in `make lint`.
for what in "--lib --bins --tests" --doc; do
	# shellcheck disable=SC2086
	cargo test --locked $what -- --show-output
done 2>&1 | tee "$log"
if grep -q '^SKIP' "$log"; then
	step "what was skipped"
	grep '^SKIP' "$log" | sort | uniq -c
fi

scripts/loom.sh 2

skipped=$(grep -c '^SKIP' "$log" || true)
if [ "$skipped" -gt 0 ]; then
	packages=$(scripts/setup.sh missing test)
	[ -z "$packages" ] || packages="; for the tools that are missing: sudo apt-get install $packages"
	[ "$(id -u)" -eq 0 ] || packages+="; some parts need root"
	printf '\n%s\n' "$skipped parts of the tests were skipped, as listed above$packages"
fi
