#!/usr/bin/env bash
# Compares the speed of this checkout and of the commit REV: `bench-ab.sh REV`. Builds both,
# optimised, measures them in turns, and prints medians and ranges of each row. Exits with 1 if a
# row is worse by more than the spread of its rounds (bench/src/compare.rs).
#
# ROUNDS (5) is the number of measurements of each commit; the first commit of a round alternates.
# ROWS selects rows as for bench.sh. WHAT=capture measures live capture over veth, as root, instead
# of the judged rows (WHAT=quick). The benchmarks are built without the optional features `dpdk` and
# `peers`. REPETITIONS (1) is the number of repetitions of each contestant in a round. Benchmarks
# without the option `--repetitions` use their own number.

. "$(dirname "$0")/lib.sh"

rev=$(git rev-parse --verify --quiet "${1:-}^{commit}") || die "usage: bench-ab.sh REV (the base commit)"
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
# A later comparison with the same commit reuses its worktree and its build.
if [ ! -e "$tree" ] || [ "$(git -C "$tree" rev-parse HEAD)" != "$rev" ]; then
	rm -rf "$tree"
	git worktree prune
	git worktree add --quiet --detach "$tree" "$rev"
fi

# Builds the benchmarks of the checkout in the current folder, and copies the programs for a run to
# the folder $1.
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
# Prints two sums over all CPUs in clock ticks: all time, and time stolen by the host
# (proc_stat(5)).
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
