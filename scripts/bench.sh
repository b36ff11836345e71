#!/usr/bin/env bash
# Throughput, optimised build: the ring, the reader of capture files, filters, and the generator over a veth pair. Figures
# compare with each other inside one run, not with those of another machine.

. "$(dirname "$0")/lib.sh"

step "machine"
uname -srm
sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | sort | uniq -c

step "building"
retroscope=$(built -p retroscope-cli --bin retroscope)
bench=$(target_dir)/bench
mkdir -p "$bench"

step "ring: one producer, one reader that touches every record"
cargo run --locked --release -q -p retroscope-ring --example ring_throughput

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
