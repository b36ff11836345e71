#!/usr/bin/env bash
# Runs fuzz targets under libFuzzer and AddressSanitizer: `scripts/fuzz.sh [SECONDS] [TARGET…]`, by
# default all targets for 60 s each. Prints SKIP if the build for libFuzzer fails.
#
# The targets are those of cargo-fuzz (`cargo fuzz run TARGET` with a nightly toolchain). This
# script needs neither, because it passes the compiler flags itself. libFuzzer's findings about the
# code stay in the target directory. A failing input is stored in fuzz/artifacts/TARGET. Give it a
# name and move it to fuzz/corpus/TARGET, where `make test` replays it.

. "$(dirname "$0")/lib.sh"

seconds=${1:-60}
shift || true
targets=("$@")
[ "${#targets[@]}" -gt 0 ] || targets=(translator joint templates payload lua_accessors pcap pcapng)

# Coverage for libFuzzer. -Zsanitizer is a nightly option, which RUSTC_BOOTSTRAP enables in a stable
# compiler.
export RUSTC_BOOTSTRAP=1
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
flags+=" -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer --cfg fuzzing"
host=$(rustc -vV | sed -n 's/^host: //p')

# An outdated fuzz/Cargo.lock is an error, no reason to skip.
cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
log=$(mktemp)
trap 'rm -f "$log"' EXIT
target=$(target_dir)/fuzz
cargo=(cargo build --release --locked --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$target")
step "building ${targets[*]} for libFuzzer"
if ! RUSTFLAGS="${RUSTFLAGS:-} $flags" "${cargo[@]}" 2>"$log"; then
	# A workspace that does not compile is an error, too.
	cargo check --locked -q -p retroscope-fuzz
	echo "SKIP: fuzzing: the build for libFuzzer fails: $(grep -m 1 '^error' "$log")" >&2
	exit 0
fi

# No search for leaks: it needs ptrace, which some containers forbid.
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
failed=0
for name in "${targets[@]}"; do
	step "fuzzing $name for $seconds s"
	mkdir -p "$target/found/$name" "fuzz/artifacts/$name"
	"$target/$host/release/$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3072 -max_len=4096 -print_final_stats=1 \
		-artifact_prefix="fuzz/artifacts/$name/" "$target/found/$name" "fuzz/corpus/$name" >"$log" 2>&1 || {
		failed=1
		grep -v '^#' "$log" | tail -n 40
		echo "$name failed: see fuzz/artifacts/$name"
	}
	grep -E '^(Done|stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb))' "$log" || true
	find "fuzz/artifacts/$name" -type d -empty -delete
done
exit "$failed"
