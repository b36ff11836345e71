#!/usr/bin/env bash
# Runs the models of the ring, the LFN table and the feed of events under loom: `scripts/loom.sh
# PREEMPTIONS`, or `scripts/loom.sh deep` with the most preemptions that finish within minutes. The
# separate target directory avoids recompiling other code when `--cfg loom` changes.

. "$(dirname "$0")/lib.sh"

preemptions=${1:?number of preemptions, or deep}
RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
CARGO_TARGET_DIR="$(target_dir)/loom"
export RUSTFLAGS CARGO_TARGET_DIR
models() {
	cargo test --locked -p retroscope-ring --lib --test loom "$@"
	cargo test --locked -p retroscope-flow --test loom "$@"
}

if [ "$preemptions" != deep ]; then
	# The models run for seconds. Compiling them takes longer.
	export CARGO_PROFILE_DEV_OPT_LEVEL=0
	step "loom, $preemptions preemptions"
	LOOM_MAX_PREEMPTIONS="$preemptions" models
	exit
fi

# Needs a minute with four preemptions, and more than three minutes with five.
large=(a_lapped_reader_follows_or_is_told)
skip=()
for model in "${large[@]}"; do
	skip+=(--skip "$model")
done
step "loom, 5 preemptions, all except ${large[*]}"
LOOM_MAX_PREEMPTIONS=5 models --release -- "${skip[@]}"
step "loom, 4 preemptions, ${large[*]}"
LOOM_MAX_PREEMPTIONS=4 models --release -- --exact "${large[@]}"
