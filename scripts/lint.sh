#!/usr/bin/env bash
# Checks formatting, clippy lints, documentation, dependencies, prose, scripts and setup.sh.

. "$(dirname "$0")/lib.sh"

step "rustfmt"
cargo fmt --all --check

step "clippy"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "rustdoc"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

step "cargo deny"
if cargo deny --version >/dev/null 2>&1; then
	# Without advisories: their database changes independently of this repository.
	cargo deny --locked check bans licenses sources
else
	echo "SKIP: cargo-deny is not installed: licences and duplicate dependencies are not checked (cargo install cargo-deny)" >&2
fi

step "prose"
scripts/prose.pl

scripts/tidy.sh
scripts/setup-check.sh

step "lines"
scripts/lines.sh
