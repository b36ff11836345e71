#!/usr/bin/env bash
# Shows the main job: a recorder keeps all packets in memory, and a trigger packet arrives after
# some seconds. The script compares the dump with the packets that the generator sent before and
# after it.
#
# Traffic goes over a veth pair in a separate network namespace, which disappears with this script.
# This needs root or an unprivileged user namespace. If neither is allowed, the generator runs
# inside the recorder. For the live part, the script runs itself in the namespace: `demo.sh inside`,
# with DEMO and RETROSCOPE in the environment.
#
# On a terminal, the demo ends with the web page: a recorder runs with similar traffic until ^C.
# `demo.sh page` does only this.

. "$(dirname "$0")/lib.sh"

# Each of 200 flows has 500 packets a second, so the window has 1500 packets of a flow and the
# trigger. The trigger and both ends of the window are midway between two packets of the flow,
# because busy machines may be late.
flows=200 rate=100kpps page_rate=20kpps seed=2017 trigger_after=4001ms duration=6s
past=2s future=1s
trigger='udp dst port 60000'
# Only the trigger packet has its destination port. Its flow is identified by the source port.
# shellcheck disable=SC2016
dump='host $srcIP and host $dstIP and port $srcPort'

fail() {
	printf 'demo: FAIL: %s\n' "$*"
	trap - EXIT
	exit 1
}

# Starts the recorder in the background, with its messages in record.log, and waits until it
# records.
start_recorder() {
	"$RETROSCOPE" record "$@" --ring 128MiB --trigger "$trigger" --dump "$dump" --past "$past" --future "$future" \
		-w "$DEMO/dumps" --json >"$DEMO/record.json" 2>"$DEMO/record.log" &
	recorder=$!
	local waited
	for ((waited = 0; waited < 300; waited++)); do
		grep -qs 'recording on' "$DEMO/record.log" && return
		kill -0 "$recorder" 2>/dev/null || break
		sleep 0.1
	done
	fail "the recorder did not start: $(tail -n 1 "$DEMO/record.log")"
}

# Waits for the recorder's end. Its exit code is 0 if all dumps are complete.
finish_recorder() {
	local code=0
	wait "$recorder" || code=$?
	recorder=
	sed 's/^/  /' "$DEMO/record.log"
	[ "$code" -eq 0 ] || fail "the recorder ended with exit code $code: see $DEMO/record.log"
}

over_veth() {
	# Without IPv6, only the generator sends on this link.
	[ ! -e /proc/sys/net/ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
	ip link add rs0 type veth peer name rs1
	ip link set rs0 up
	ip link set rs1 up
	step "recording on rs1, sending on rs0: $rate in $flows flows for $duration, the trigger after $trigger_after"
	start_recorder -i rs1
	"$RETROSCOPE" generate -i rs0 --yes --flows "$flows" --rate "$rate" --seed "$seed" --trigger-after "$trigger_after" \
		--duration "$duration" -w "$DEMO/sent.pcap" --json >"$DEMO/sent.json" || fail "the generator failed"
	kill -INT "$recorder"
	finish_recorder
}

in_process() {
	step "recording from the generator: $rate in $flows flows for $duration, the trigger after $trigger_after"
	start_recorder -i "generate:flows=$flows,rate=$rate,seed=$seed,trigger-after=$trigger_after,duration=$duration"
	"$RETROSCOPE" generate --flows "$flows" --rate "$rate" --seed "$seed" --trigger-after "$trigger_after" \
		--duration "$duration" -w "$DEMO/sent.pcap" --json >"$DEMO/sent.json" || fail "the generator failed"
	finish_recorder
}

# Compares the dump with the sent packets, shows it, and sets `verdict`.
verify() {
	local sidecar file filter
	sidecar=$(find "$DEMO/dumps" -name '*.json')
	file=$(find "$DEMO/dumps" -name '*.pcapng')
	[ -f "$sidecar" ] && [ -f "$file" ] || fail "expected one dump and its sidecar in $DEMO/dumps"
	filter=$(sed -n 's/.*"filter": *"\([^"]*\)".*/\1/p' "$sidecar")
	[ -n "$filter" ] || fail "the sidecar $sidecar has no dump filter"

	step "sent packets that match the dump filter: $filter"
	"$RETROSCOPE" filter -r "$DEMO/sent.pcap" -w "$DEMO/flow.pcap" -- "$filter" || fail "filtering sent.pcap failed"

	step "comparing"
	verdict=$("$DEMO_CHECK" "$DEMO/record.json" "$DEMO/sent.json" "$DEMO/flow.pcap" "$@") || fail "$verdict"
	cp "$file" "$DEMO/dump.pcapng"
	cp "$sidecar" "$DEMO/dump.json"

	if command -v tcpdump >/dev/null; then
		step "tcpdump reads it (three packets around the trigger)"
		tcpdump -tttt -nr "$DEMO/dump.pcapng" >"$DEMO/dump.txt" 2>"$DEMO/tcpdump.log" ||
			fail "tcpdump does not read the dump: $(tail -n 1 "$DEMO/tcpdump.log")"
		[ "$(wc -l <"$DEMO/dump.txt")" -eq "${verdict%% *}" ] || fail "tcpdump reports a different number of packets"
	else
		step "three packets around the trigger"
		"$RETROSCOPE" filter -r "$DEMO/dump.pcapng" -- '' >"$DEMO/dump.txt" || fail "the dump cannot be read"
	fi
	grep -m 1 -B 1 -A 1 '\.60000: ' "$DEMO/dump.txt" || fail "the trigger packet is not in the dump's text"
}

# Records traffic with the same flows and trigger packet, at a lower rate, from the generator inside
# the recorder. Prints the page's address. Returns after ^C.
show_page() {
	local link
	step "recording $page_rate in $flows flows, the trigger after $trigger_after"
	trap : INT
	start_recorder -i "generate:flows=$flows,rate=$page_rate,seed=$seed,trigger-after=$trigger_after" \
		--api 127.0.0.1:0 --api "unix:$DEMO/socket"
	link=$("$RETROSCOPE" open --print --socket "$DEMO/socket") || fail "retroscope open failed"
	printf '\nThe web page, for one login within a minute:\n  %s\nAnother login: %s open --socket %s\n^C ends the recording.\n' \
		"$link" "$RETROSCOPE" "$DEMO/socket"
	# ^C interrupts the first `wait`. The recorder also gets the signal, and ends.
	wait "$recorder" || wait "$recorder" || true
	recorder=
}

recorder=
unexpected() {
	local code=$?
	[ -z "$recorder" ] || kill -KILL "$recorder" 2>/dev/null || true
	printf 'demo: FAIL: stopped with exit code %s; for the messages see %s\n' "$code" "${DEMO:-the lines above}"
	exit 1
}
trap unexpected EXIT
trap 'exit 130' INT TERM

if [ "${1:-}" = inside ]; then
	over_veth
	trap - EXIT
	exit 0
fi

step "building"
# One call builds both: the example alone would recompile half of the program with other features.
programs=$(built -p retroscope-cli --bin retroscope --example demo_check)
RETROSCOPE=$(grep '/retroscope$' <<<"$programs")
DEMO_CHECK=$(grep '/demo_check$' <<<"$programs")
DEMO=$(target_dir)/demo
export RETROSCOPE DEMO
mkdir -p "$DEMO"
rm -rf "$DEMO/dumps"
rm -f "$DEMO"/*

if [ "${1:-}" = page ]; then
	show_page
	trap - EXIT
	exit 0
fi

# Fails if this `unshare` does not permit a veth pair or a packet socket.
probe='ip link add rs0 type veth peer name rs1 && ip link set rs0 up && ip link set rs1 up &&
	"$RETROSCOPE" generate -i rs0 --yes -c 1 -q'
# The script inside has already printed the reason of a failure.
inside() {
	"$@" "scripts/demo.sh" inside || {
		trap - EXIT
		exit 1
	}
}
if unshare -n sh -c "$probe" >"$DEMO/probe.log" 2>&1; then
	echo "traffic: live, over a veth pair in a network namespace"
	inside unshare -n
	verify
elif unshare -Urn sh -c "$probe" >>"$DEMO/probe.log" 2>&1; then
	echo "traffic: live, over a veth pair in an unprivileged user namespace"
	inside unshare -Urn
	verify
else
	echo "traffic: from the generator inside the recorder, because no veth pair can be made here:"
	sed 's/^/  /' "$DEMO/probe.log"
	in_process
	verify schedule
fi

trap - EXIT
printf '\ndemo: PASS: %s: %s\n' "$verdict" "$DEMO/dump.pcapng"
[ ! -t 1 ] || show_page
