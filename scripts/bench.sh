#!/usr/bin/env bash
# Runs benchmarks of an optimised build. Only figures of the same run can be compared.
#
#   bench.sh quick     the tests of the benchmarks, then the judged rows
#   bench.sh full      all rows of the ring, filters, flows and recorder; then the reader of capture files, a filter over a file, and the generator over veth
#   bench.sh capture   live capture over veth, as root, with plots
#   bench.sh shed      load shedding over veth, as root, with plots; QUICK=1 is brief
#   bench.sh papers    all of these rows, and papers.md (docs/dev/papers.md); continues an interrupted run of the same commit; QUICK=1 is brief.
#                      Without root, rows of live traffic are left out.
#
# Rows go to bench/results.json in cargo's target directory. ROWS selects some: ROWS=ring,limits/raw-insert.
# UPDATE_DOCS=1 with full, capture or shed replaces their figures in docs/dev/benchmarks.md and docs/dev/plots.
# UPDATE_DOCS=1 with papers publishes the figures in docs/dev/papers, for this kind of machine, and in docs/dev/papers.md.
# REMARK is printed with published figures: what a reader must know about the run.

. "$(dirname "$0")/lib.sh"

what=${1:-quick}
bench=$(target_dir)/bench
arguments=()
if [ "$what" = papers ] || [ "$what" = shed ]; then
	[ -z "${QUICK:-}${ROWS:-}" ] || [ -z "${UPDATE_DOCS:-}" ] || die "UPDATE_DOCS needs a whole run, without QUICK and ROWS"
	arguments=(${QUICK:+--quick})
fi
if [ "$what" = papers ]; then
	bench=$bench/papers
	[ "$(id -u)" = 0 ] || [ -z "${UPDATE_DOCS:-}" ] || die "UPDATE_DOCS needs a whole run: live traffic over veth needs root"
else
	rm -f "$bench/results.json"
fi
mkdir -p "$bench"

step "building"
features=()
if pkg-config --exists libdpdk 2>/dev/null; then
	features+=(--features dpdk)
	# The rows of folly's queues need FOLLY_INCLUDE (bench/build.rs).
	[ "$what" != full ] && [ "$what" != papers ] || [ -n "$(scripts/setup.sh missing peers)" ] || features+=(--features peers)
fi
if [ "$what" = quick ]; then
	step "its own tests"
	cargo test --locked -q -p retroscope-bench "${features[@]}"
	step "building, optimised"
fi
program=$(built -p retroscope-bench --bin retroscope-bench "${features[@]}")

live_traffic=
case $what in
capture | shed | papers)
	live_traffic=yes
	if [ "$(id -u)" != 0 ]; then
		live_traffic=
		echo "SKIP: live traffic over veth needs root" >&2
		[ "$what" = papers ] || exit 1
	fi
	;;
esac
if [ "$live_traffic" ]; then
	[ "$what" = shed ] || command -v tcpdump >/dev/null || echo "SKIP: the rows against tcpdump, which is not installed" >&2
	for shim in minimal_reader frame_source; do "${CC:-cc}" -O2 -o "$bench/$shim" "bench/shim/$shim.c"; done
	arguments+=(--retroscope "$(built -p retroscope-cli --bin retroscope)" --minimal "$bench/minimal_reader" --frame-source "$bench/frame_source")
fi

step "measuring"
"$program" "$what" --out "$bench" "${arguments[@]}" && failed=0 || failed=$?
[ ! -e "$bench/results.json" ] || echo "rows: $bench/results.json"
if { [ "$what" = capture ] || [ "$what" = shed ]; } && [ -e "$bench/results.json" ]; then
	step "drawing"
	"$program" "report-$what" --out "$bench" ${UPDATE_DOCS:+--docs docs/dev}
fi
if [ "$what" = papers ] && [ -e "$bench/results.json" ]; then
	step "drawing"
	"$program" report --out "$bench" ${UPDATE_DOCS:+--papers docs/dev}
fi
[ "$what" = full ] || exit "$failed"

step "drawing"
"$program" report --out "$bench" ${UPDATE_DOCS:+--docs docs/dev}

step "building what is not the ring"
retroscope=$(built -p retroscope-cli --bin retroscope)

step "generate: into a file"
"$retroscope" generate -w "$bench/sample.pcap" -c 2000000 --flows 1000 --size 128 --trigger-after 1s

step "pcapfile: parsing it from memory"
cargo run --locked --release -q -p retroscope-pcapfile --example pcapfile_throughput "$bench/sample.pcap"

step "filter: seconds for 2 million packets, the file in the page cache"
expression='udp dst port 60000 or host 10.1.0.1 or net 192.168.0.0/16'
TIMEFORMAT='%R s'
time matched=$("$retroscope" filter -r "$bench/sample.pcap" --count -- "$expression")
[ "$matched" -eq 1 ] || die "the filter found $matched packets instead of the trigger alone"

step "record: the whole path from a file, seconds for 2 million packets"
rm -rf "$bench/dumps"
time "$retroscope" record -r "$bench/sample.pcap" --ring 512MiB --trigger 'udp dst port 60000' --past 1s --future 1s \
	-w "$bench/dumps" -q

step "generate: live, 64-byte frames over a veth pair that nobody reads"
live='ip link add rs0 type veth peer name rs1 && ip link set rs0 up && ip link set rs1 up &&
	for repetition in 1 2 3; do "$0" generate -i rs0 --yes -c 2000000; done'
unshare -n sh -c "$live" "$retroscope" || unshare -Urn sh -c "$live" "$retroscope" ||
	echo "SKIP: no veth pair can be made here (needs root or user namespaces, and iproute2)" >&2
rm -rf "$bench/dumps" "$bench/sample.pcap"
exit "$failed"
