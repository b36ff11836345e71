#!/usr/bin/env bash
# Formatting, clippy, documentation, dependencies, and what no other tool says.

. "$(dirname "$0")/lib.sh"

step "rustfmt"
cargo fmt --all --check

step "clippy"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "rustdoc"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

step "cargo deny"
if cargo deny --version >/dev/null 2>&1; then
	# The advisory database is not part of this check: it changes without us.
	cargo deny --locked check bans licenses sources
else
	echo "SKIP: cargo-deny is not installed: licences and duplicate dependencies are unchecked (cargo install cargo-deny)" >&2
fi

step "prose"
scripts/prose.pl

scripts/tidy.sh
scripts/setup-check.sh

step "lines"
scripts/lines.sh
