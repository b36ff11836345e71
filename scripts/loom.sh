#!/usr/bin/env bash
# Runs the ring's models under loom: `scripts/loom.sh PREEMPTIONS`. They have a target directory of their own, because
# `--cfg loom` would have everything else compiled again.

. "$(dirname "$0")/lib.sh"

preemptions=${1:?how many preemptions}
step "loom, $preemptions preemptions"
target=$(target_dir)
RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" LOOM_MAX_PREEMPTIONS="$preemptions" CARGO_TARGET_DIR="$target/loom" \
	cargo test --locked -p retroscope-ring --release --test loom
