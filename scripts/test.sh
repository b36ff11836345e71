#!/usr/bin/env bash
# Every test that needs no special hardware. Tests that need root, a tool or a file that is not there say SKIP.

. "$(dirname "$0")/lib.sh"

step "tests"
[ "$(id -u)" -eq 0 ] || echo "SKIP: tests in network namespaces (not root)" >&2
cargo test --workspace --locked

scripts/loom.sh 2
