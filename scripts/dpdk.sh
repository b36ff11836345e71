#!/usr/bin/env bash
# Lints and tests the feature `dpdk`, or prints SKIP if pkg-config does not find DPDK. As root, also
# tests interfaces in network namespaces.

. "$(dirname "$0")/lib.sh"

if ! pkg-config --exists libdpdk 2>/dev/null; then
	echo "SKIP: the DPDK engine is neither linted nor tested: no libdpdk (apt-get install libdpdk-dev pkg-config)" >&2
	exit 0
fi
packages=(-p retroscope-dpdk -p retroscope-cli --features dpdk)

step "clippy, with DPDK $(pkg-config --modversion libdpdk)"
cargo clippy "${packages[@]}" --all-targets --locked -- -D warnings

step "rustdoc, with DPDK"
RUSTDOCFLAGS="-D warnings" cargo doc "${packages[@]}" --no-deps --locked

step "tests, with DPDK"
[ "$(id -u)" -eq 0 ] || echo "SKIP: DPDK over interfaces of network namespaces (not root)" >&2
cargo test -p retroscope-dpdk --features dpdk --locked --lib -- --show-output
cargo test -p retroscope-dpdk --features dpdk --locked --test dpdk -- --show-output
cargo test -p retroscope-cli --features dpdk --locked --test live dpdk -- --show-output
