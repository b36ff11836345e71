#!/usr/bin/env bash
# Records generated traffic over a veth pair for minutes, with packet triggers and manual triggers.
# At the end, checks all counters: all sent packets were received, no packet was lost, and each dump
# is complete. Then runs the live tests, which need root, with RETROSCOPE_SOAK=1: longer, one at a
# time, and with time limits for an idle machine.
#
# SOAK_SECONDS (120), SOAK_RATE (100kpps) and SOAK_RING (256MiB) change duration, rate and ring
# size.

. "$(dirname "$0")/lib.sh"

seconds=${SOAK_SECONDS:-120} rate=${SOAK_RATE:-100kpps} ring=${SOAK_RING:-256MiB}

if [ "${1:-}" != inside ]; then
	step "building"
	RETROSCOPE=$(built -p retroscope-cli --bin retroscope)
	SOAK=$(target_dir)/soak
	export RETROSCOPE SOAK
	rm -rf "$SOAK"
	mkdir -p "$SOAK"
	for way in "unshare -n" "unshare -Urn"; do
		# shellcheck disable=SC2086
		if $way ip link add rs0 type veth peer name rs1 2>/dev/null; then
			$way scripts/soak.sh inside
			step "the live tests, longer and with tighter time limits"
			# --show-output: figures and SKIP lines of passing tests.
			RETROSCOPE_SOAK=1 exec cargo test --locked -p retroscope-cli --test live -- --test-threads=1 --show-output
		fi
	done
	die "soak needs a veth pair: run it as root, or allow user namespaces, with iproute2 installed"
fi

recorder=
trap '[ -z "$recorder" ] || kill -KILL "$recorder" 2>/dev/null || true' EXIT
[ ! -e /proc/sys/net/ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
ip link add rs0 type veth peer name rs1
ip link set rs0 up
ip link set rs1 up

step "recording for $seconds s at $rate with a ring of $ring"
# shellcheck disable=SC2016
"$RETROSCOPE" record -i rs1 --ring "$ring" --trigger 'udp dst port 60000' --dump 'host $srcIP' --past 3s --future 2s \
	--set 'manual-dump=udp dst portrange 1000-1050' -w "$SOAK/dumps" --json >"$SOAK/record.json" 2>"$SOAK/record.log" &
recorder=$!
until grep -q 'recording on' "$SOAK/record.log"; do
	kill -0 "$recorder" 2>/dev/null || die "the recorder did not start: $(cat "$SOAK/record.log")"
	sleep 0.1
done

sent=0 runs=0
end=$((SECONDS + seconds))
while [ "$SECONDS" -lt "$end" ]; do
	runs=$((runs + 1))
	# Every second run begins with a manual trigger.
	[ $((runs % 2)) -eq 0 ] || kill -USR1 "$recorder"
	"$RETROSCOPE" generate -i rs0 --yes --rate "$rate" --seed "$runs" --trigger-after 1s --duration 2s --json -q >"$SOAK/sent.json"
	sent=$((sent + $(sed -n 's/.*"packets":\([0-9]*\).*/\1/p' "$SOAK/sent.json")))
done
kill -INT "$recorder"
code=0
wait "$recorder" || code=$?
recorder=

# Prints a number of the summary, which has one source.
number() {
	tail -n 1 "$SOAK/record.json" | sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"
}
received=$(number received) filtered=$(number filtered) triggers=$(number triggers)
stored=$(tail -n 1 "$SOAK/record.json" | sed -n 's/.*"received":[0-9]*,"stored":\([0-9]*\).*/\1/p')
lost=$(tail -n 1 "$SOAK/record.json" | sed -n 's/.*"lost":{\([^}]*\)}.*/\1/p' | tr ',' '\n' | sed 's/.*://' | paste -sd + - | sed 's/^$/0/')
[[ "$lost" != *null* ]] || die "soak: FAIL: a loss counter is unknown: $lost"
lost=$((lost))
complete=$(grep -o '"verdict":"complete"' "$SOAK/record.json" | wc -l)
dumped=$(find "$SOAK/dumps" -name '*.pcapng' | wc -l)

echo "sent $sent in $runs runs; received $received = stored $stored + filtered $filtered + lost $lost"
echo "$triggers triggers, $complete complete dumps, $dumped files, exit code $code"
[ "$received" -eq $((stored + filtered + lost)) ] || die "soak: FAIL: the counters do not add up"
[ "$received" -eq "$sent" ] || die "soak: FAIL: not all sent packets were received"
[ "$lost" -eq 0 ] || die "soak: FAIL: packets were lost"
[ "$triggers" -ge "$runs" ] || die "soak: FAIL: a trigger was missed"
[ "$complete" -eq "$triggers" ] && [ "$dumped" -eq "$triggers" ] || die "soak: FAIL: a dump is not complete"
[ "$code" -eq 0 ] || die "soak: FAIL: exit code $code"
rm -rf "$SOAK/dumps"
echo "soak: PASS"
