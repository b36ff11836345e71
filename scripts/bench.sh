#!/usr/bin/env bash
# Runs every crate's throughput example, optimised. Figures compare with each other, inside one run, not with those of
# another machine.

. "$(dirname "$0")/lib.sh"

step "machine"
uname -srm
sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | sort | uniq -c

ran=0
for example in crates/*/examples/throughput.rs; do
	[ -e "$example" ] || continue
	crate=${example#crates/}
	crate=${crate%%/*}
	step "$crate"
	cargo run --locked --release -q -p "retroscope-$crate" --example throughput
	ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || die "no crate has an example named throughput"
