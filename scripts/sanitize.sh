#!/usr/bin/env bash
# Runs tests under a sanitizer: `scripts/sanitize.sh thread|address`. Prints SKIP if the sanitizer
# is not available.
#
# RUSTC_BOOTSTRAP enables the nightly option -Zsanitizer in a stable compiler. The standard library
# is not instrumented. crates/ring/src/sync.rs makes its synchronization visible to ThreadSanitizer,
# and scripts/tsan.supp suppresses the remaining false reports. `cfg(retroscope_sanitize)` replaces
# inline assembly, which sanitizers do not see.

. "$(dirname "$0")/lib.sh"

sanitizer=${1:?thread or address}
export RUSTC_BOOTSTRAP=1
flags="-Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer"
target=$(rustc -vV | sed -n 's/^host: //p')

# An empty program shows whether the compiler has the sanitizer, and whether the sanitizer starts.
# ThreadSanitizer rejects some address layouts: the second attempt is without ASLR.
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
wrap=()
echo 'fn main() {}' >"$probe/probe.rs"
# shellcheck disable=SC2086 # several flags
if ! rustc $flags --target "$target" -o "$probe/probe" "$probe/probe.rs" 2>"$probe/log"; then
	echo "SKIP: $sanitizer sanitizer: this compiler does not have it for $target: $(head -n 1 "$probe/log")" >&2
	exit 0
fi
if ! "$probe/probe" 2>"$probe/log"; then
	wrap=(setarch "$(uname -m)" -R)
	if ! "${wrap[@]}" "$probe/probe" 2>"$probe/log"; then
		echo "SKIP: $sanitizer sanitizer: it does not start: $(head -n 1 "$probe/log")" >&2
		exit 0
	fi
fi

# No search for leaks: it needs ptrace, which some containers forbid.
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.supp:history_size=7${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
export RUSTFLAGS="${RUSTFLAGS:-} $flags --cfg retroscope_sanitize --cfg retroscope_sanitize=\"$sanitizer\""
CARGO_TARGET_DIR="$(target_dir)/sanitize-$sanitizer"
export CARGO_TARGET_DIR

packages=(-p retroscope-ring)
if [ "$sanitizer" = address ]; then
	packages+=(-p retroscope-packet -p retroscope-pcapfile -p retroscope-filter)
fi
step "$sanitizer sanitizer: ${packages[*]//-p /}"
"${wrap[@]}" cargo test --locked --target "$target" "${packages[@]}" --lib --tests -- --test-threads=1
step "$sanitizer sanitizer: the LFN table, the feed of events"
"${wrap[@]}" cargo test --locked --target "$target" -p retroscope-flow --lib -- lfn:: feed:: --test-threads=1
# Safe code that uses the LFN table: sanitizers can find only races.
if [ "$sanitizer" = thread ]; then
	step "$sanitizer sanitizer: marks of flows"
	"${wrap[@]}" cargo test --locked --target "$target" -p retroscope-recorder --lib -- intake::marks --test-threads=1
fi
