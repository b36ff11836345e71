#!/usr/bin/env bash
# Compares this checkout with the commit REV: `bench-ab.sh REV`. Builds both, optimised, measures them in turns, and prints
# each row's medians and ranges. Exits with 1 if a row is worse beyond the spread of its rounds (bench/src/compare.rs).
#
# ROUNDS (5) is how often each commit is measured; the commit that begins alternates. ROWS selects rows as for bench.sh.
# WHAT=capture measures live capture over veth, as root, instead of the judged rows (WHAT=quick).
# The benchmarks are built without the optional features `dpdk` and `peers`.
# A round has one repetition of each contestant; REPETITIONS changes that. A commit whose benchmarks have no option
# for repetitions takes its own number of them.

. "$(dirname "$0")/lib.sh"

rev=$(git rev-parse --verify --quiet "${1:-}^{commit}") || die "usage: bench-ab.sh REV: which commit shall be the base?"
what=${WHAT:-quick}
rounds=${ROUNDS:-5}
case $what in
quick | capture) ;;
*) die "WHAT=$what: quick or capture" ;;
esac
[ "$what" = quick ] || [ "$(id -u)" = 0 ] || die "WHAT=capture: live capture over veth needs root"
target=$(target_dir)
folder=$target/bench-ab
tree=$folder/tree
rm -rf "$folder/base" "$folder/new"
mkdir -p "$folder"
git worktree prune
# Another comparison with the same commit uses its tree and its build again.
if [ ! -e "$tree" ] || [ "$(git -C "$tree" rev-parse HEAD)" != "$rev" ]; then
	rm -rf "$tree"
	git worktree prune
	git worktree add --quiet --detach "$tree" "$rev"
fi

# Builds the benchmarks of the checkout in the current folder, and copies what a run needs to the folder $1.
build() {
	mkdir -p "$1"
	cp "$(built -p retroscope-bench --bin retroscope-bench)" "$1/retroscope-bench"
	if [ "$what" = capture ]; then
		cp "$(built -p retroscope-cli --bin retroscope)" "$1/retroscope"
		local shim
		for shim in minimal_reader frame_source; do
			[ ! -e "bench/shim/$shim.c" ] || "${CC:-cc}" -O2 -o "$1/$shim" "bench/shim/$shim.c"
		done
	fi
}
step "building $(git rev-parse --short "$rev")"
(cd "$tree" && export CARGO_TARGET_DIR=$folder/build && build "$folder/base")
step "building this checkout"
build "$folder/new"

# Measures round $2 of the commit $1.
measure() {
	local side=$folder/$1 arguments=("$what" --out "$folder/$1/$2")
	if "$side/retroscope-bench" --help | grep -q -- --repetitions; then
		arguments+=(--repetitions "${REPETITIONS:-1}")
	fi
	[ "$what" = quick ] || arguments+=(--retroscope "$side/retroscope" --minimal "$side/minimal_reader")
	[ ! -e "$side/frame_source" ] || arguments+=(--frame-source "$side/frame_source")
	"$side/retroscope-bench" "${arguments[@]}" || echo "round $2 of $1: a check failed" >&2
}
# The clock ticks that all processors spent, and those that the host took from them (proc_stat(5)).
ticks() {
	awk '/^cpu / { for (field = 2; field <= 9; field++) sum += $field; print sum, $9 }' /proc/stat
}
read -r ticks_before stolen_before < <(ticks)
load_before=$(cut -d ' ' -f 1 /proc/loadavg)
for ((round = 1; round <= rounds; round++)); do
	order=(base new)
	[ $((round % 2)) -eq 1 ] || order=(new base)
	for side in "${order[@]}"; do
		step "round $round of $rounds: $side"
		measure "$side" "$round"
	done
done
read -r ticks_after stolen_after < <(ticks)

step "base is $(git rev-parse --short "$rev"), new is $(git describe --always --dirty)"
sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort | uniq -c
echo "load average $load_before before and $(cut -d ' ' -f 1 /proc/loadavg) after;" \
	"the host took $((100 * (stolen_after - stolen_before) / (ticks_after - ticks_before))) % of the time"
"$folder/new/retroscope-bench" compare --out "$folder"
