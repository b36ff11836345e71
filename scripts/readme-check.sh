#!/usr/bin/env bash
# Runs the commands of README and of the book on two simulated machines: network namespaces with a
# link between them.
#
# In README's sections on alerts and on the last 30 seconds, a comment above each block says where
# the block runs: on the tap or on the laptop. Blocks of the tap run before the recording (`first`),
# in the background (`records`), or during the recording. The laptop is 192.0.2.7 and has the token
# and the certificate. Each query command must print the laptop's packets, and `retroscope query`
# must report that they are complete. Without Suricata, the script writes the line of the alert.
#
# All other console blocks of README and docs/*.md run on the tap, page by page (`page` below). A
# test runs the triggers of docs/cookbook.md.
#
# Needs root and the tools that it checks below, and prints SKIP without them. A mount namespace
# hides system folders that the commands change.

. "$(dirname "$0")/lib.sh"

# Prints the blocks under a comment, one command a line.
blocks() {
	awk -v where="<!-- $1 -->" '
		$0 == where { wanted = 1; next }
		wanted && /^```console$/ { inside = 1; next }
		inside && /^```$/ { inside = wanted = 0 }
		inside { sub(/^\$ /, ""); if (sub(/ \\$/, " ")) printf "%s", $0; else print }
	' README.md
}

# Runs the commands of the block $2 with the prefix $1. Each must print the laptop's packets.
ask() {
	local command
	while IFS= read -r command; do
		echo "$2: $command"
		(cd "$FOLDER/$2" && $1 bash -c "set -o pipefail; $command") >"$FOLDER/out" 2>"$FOLDER/err" </dev/null ||
			die "readme-check: FAIL with $?: $(cat "$FOLDER/err")"
		grep -q '192\.0\.2\.7.*UDP' "$FOLDER/out" || die "readme-check: FAIL: no packets: $(cat "$FOLDER/out" "$FOLDER/err")"
		case $command in
		"retroscope query"*) grep -q 'Z: complete' "$FOLDER/err" || die "readme-check: FAIL: no verdict: $(cat "$FOLDER/err")" ;;
		esac
		asked=$((asked + 1))
	done < <(blocks "$2")
}

# Waits until a line of the file $2 matches $1, while the process $3 runs.
await() {
	local waited
	for ((waited = 0; waited < 600; waited++)); do
		grep -qs "$1" "$2" && return
		kill -0 "$3" 2>/dev/null || break
		sleep 0.1
	done
	die "readme-check: FAIL: $(cat "$2")"
}

# Runs the five commands of README's section on alerts.
alert() {
	local command commands waited log=/var/log/suricata
	suricata=
	mkdir -p "$log"
	mount -t tmpfs none "$log"
	command=$(blocks "alerts, records")
	echo "tap: $command"
	(cd "$FOLDER/tap" && exec bash -c "exec $command") 2>"$FOLDER/words" &
	recorder=$!
	trap 'kill "$recorder" $suricata 2>/dev/null || true; wait; umount "$FOLDER/net"' EXIT
	await 'recording on' "$FOLDER/words" "$recorder"
	mapfile -t commands < <(blocks "alerts, suricata")
	(cd "$FOLDER/tap" && bash -c "${commands[0]}")
	if command -v suricata >/dev/null; then
		printf 'tap: %s\n' "${commands[@]}"
		(cd "$FOLDER/tap" && exec bash -c "exec ${commands[1]}") >"$FOLDER/suricata" 2>&1 &
		suricata=$!
		await 'Engine started' "$FOLDER/suricata" "$suricata"
	fi
	mapfile -t commands < <(blocks alerts)
	[ "${#commands[@]}" -eq 2 ] || die "readme-check: FAIL: README.md has ${#commands[@]} commands of an alert instead of 2"
	echo "tap: ${commands[0]}"
	bash -c "${commands[0]}" >"$FOLDER/out" || die "readme-check: FAIL with $?: $(cat "$FOLDER/out")"
	if [ -z "$suricata" ]; then
		printf '{"timestamp":"%s","event_type":"alert","src_ip":"192.0.2.1","dest_ip":"192.0.2.7","proto":"ICMP","alert":{"signature_id":1,"signature":"somebody pings"}}\n' \
			"$(date -u +%FT%T.%6N+0000)" >>"$log/eve.json"
	fi
	echo "tap: ${commands[1]}"
	# Repeat the command until the dump exists.
	for ((waited = 0; waited < 300; waited++)); do
		(cd "$FOLDER/tap" && bash -c "${commands[1]}") >"$FOLDER/out" 2>"$FOLDER/err" && break
		sleep 0.1
	done
	[ "$(grep -c 'Echo (ping) re' "$FOLDER/out")" -eq 2 ] || die "readme-check: FAIL: $(cat "$FOLDER/out" "$FOLDER/err" "$FOLDER/words")"
	# shellcheck disable=SC2086
	kill -INT "$recorder" $suricata
	wait "$recorder" || die "readme-check: FAIL: the recorder ended with $?: $(cat "$FOLDER/words")"
	wait
	umount "$log"
}

# Commands that are not run, because they need other programs, hosts or hardware.
ABSENT='^(git|make|cargo|docker|kubectl|ssh|apt|apt-get|systemctl|usermod|newgrp|editor|chown|dpdk-devbind.py|ethtool)\b|--engine dpdk|sensor:|tap\.example|usbmon|rsync|reader\.sock|/sys/|/proc/sys/'

# Prints the commands of a page, one a line, without blocks under a comment.
commands() {
	awk '
		/^<!-- / { skip = 1; next }
		/^```(console|sh)$/ { inside = !skip; shell = /sh$/; skip = 0; next }
		/^```$/ { inside = joined = 0; next }
		inside && (joined || shell || /^[$#] /) {
			if (!joined && !shell) sub(/^[$#] /, "")
			joined = sub(/\\$/, " ")
			printf "%s%s", $0, joined ? "" : "\n"
		}
	' "$1"
}

# Runs a command to its end, or for four seconds if it follows live traffic. Repeats a failed
# command, because its dump may still be open.
finish() {
	local waited result expected=" 0 " seconds=60
	case $1 in
	"tshark -i"* | "retroscope flows -i"*) seconds=4 ;;
	# Expected codes: 2 for an invalid expression, 3 for the ring of a killed recorder, 1 for
	# findings.
	*"bad..1"*) expected=" 2 " ;;
	*"--ring-file"*) expected=" 0 3 " ;;
	"retroscope doctor"*) expected=" 0 1 " ;;
	esac
	for ((waited = 0; waited < 15; waited++)); do
		result=0
		timeout --preserve-status -s INT "$seconds" bash -c "$1" >"$FOLDER/out" 2>"$FOLDER/err" </dev/null || result=$?
		[[ $expected = *" $result "* ]] && return
		sleep 1
	done
	die "readme-check: FAIL with $result: $(cat "$FOLDER/out" "$FOLDER/err" "$FOLDER/words")"
}

# Stops the recorder of a page. Code 3: a dump lacks packets, because its window begins before the
# ring.
stop() {
	[ -n "$recorder" ] || return 0
	kill -INT "$recorder"
	wait "$recorder" || [ $? -eq 3 ] || die "readme-check: FAIL: the recorder ended: $(cat "$FOLDER/words")"
	recorder=
}

# Runs the commands of a page. A live recorder runs until the next recorder starts, or the page
# ends.
page() (
	recorder='' suricata=''
	trap 'kill $recorder $suricata 2>/dev/null || true; wait' EXIT
	rm -rf /etc/retroscope/* "$FOLDER/page" /var/log/suricata/*
	mkdir /etc/retroscope/alertmanager /etc/retroscope/prometheus
	cp -r "$FOLDER/files" "$FOLDER/page"
	ln -s "$PWD/examples" "$FOLDER/page"
	cp "$FOLDER/files/retroscope.toml" "$FOLDER/files/tokens" /etc/retroscope
	mapfile -t commands < <(commands "$1")
	[ "$1" != docs/wireshark.md ] || commands=("retroscope record -i eth0 --api unix:/run/retroscope/retroscope.sock" "${commands[@]}")
	cd "$FOLDER/page"
	for command in "${commands[@]}"; do
		command=${command#sudo }
		if grep -qE "$ABSENT" <<<"$command"; then
			echo "$1: not run: $command"
			continue
		fi
		echo "$1: $command"
		echo "$command" >>"$FOLDER/ran"
		command=$(sed -E 's/--ring [0-9]+GiB/--ring 256MiB/; s/dumps get [0-9]+/dumps get 1/; s,/etc/(retroscope.toml|prometheus/|alertmanager/),/etc/retroscope/\1,' <<<"$command")
		case $command in
		*"--check-config"* | *"--duration"*) finish "$command" ;;
		*"--ring-file"*" &")
			eval "$command"
			file=${command##*--ring-file }
			finish "retroscope status --ring-file ${file% &}"
			;;
		*'$!'*) eval "$command" ;;
		"suricata"*)
			command -v suricata >/dev/null || continue
			bash -c "exec $command" >"$FOLDER/suricata" 2>&1 &
			suricata=$!
			await 'Engine started' "$FOLDER/suricata" "$suricata"
			;;
		"retroscope record"*" -i "* | "retroscope record --config"*)
			stop
			: >"$FOLDER/words"
			bash -c "exec $command" >"$FOLDER/words" 2>&1 </dev/null &
			recorder=$!
			await 'recording on' "$FOLDER/words" "$recorder"
			;;
		"tshark -r alerts"* | "jq .alerts"*) [ -z "$suricata" ] || finish "$command" ;;
		*) finish "$command" ;;
		esac
	done
	stop
)

# Runs README and the pages of the book, except commands that match ABSENT, such as those for DPDK
# and containers.
book() {
	mkdir -p "$FOLDER/files" "$FOLDER/home"
	export HOME="$FOLDER/home"
	mount -t tmpfs none /var/log
	mkdir -p /var/log/suricata /var/log/retroscope
	for file in big.pcapng capture.pcap a.pcap call.pcap in.pcap; do
		retroscope generate -q -c 1000 -w "$FOLDER/files/$file"
	done
	touch "$FOLDER/files/eve.json"
	retroscope token --tokens "$FOLDER/files/tokens" --name first --role admin >/dev/null
	printf '%s\n' 'interface = ["eth0"]' 'write = "dumps"' \
		'[[rule]]' 'name = "dns-failures"' 'filter = "udp port 53"' '[api]' 'listen = ["unix:/run/retroscope/retroscope.sock"]' >"$FOLDER/files/retroscope.toml"
	$laptop bash -c 'while sleep 0.2; do echo >/dev/udp/192.0.2.1/53; done' &
	traffic=$!
	trap 'kill "$traffic"; wait; umount "$FOLDER/net"' EXIT
	for page in README.md docs/*.md; do
		case $page in
		# A test runs the triggers of the cookbook, and another parses the examples of --help.
		docs/cookbook.md | docs/options.md) ;;
		*) page "$page" ;;
		esac
	done
	ran=$(wc -l <"$FOLDER/ran")
	[ "$ran" -ge 40 ] || die "readme-check: FAIL: the book has only $ran commands"
}

if [ "${1:-}" = inside ]; then
	# The mount namespace ends with this script.
	mount -t tmpfs none /etc/retroscope
	mount -t tmpfs none /run
	mount -t tmpfs none /var/tmp
	mount -t tmpfs none /dev/shm
	mkdir /run/retroscope
	PATH=$(dirname "$RETROSCOPE"):$PATH
	export PATH
	mkdir -p "$FOLDER/tap" "$FOLDER/laptop"
	laptop="nsenter --net=$FOLDER/net"
	touch "$FOLDER/net"
	unshare --net="$FOLDER/net" true
	ip link add eth0 type veth peer name eth0 netns "$FOLDER/net"
	ip addr add 192.0.2.1/24 dev eth0
	ip link set lo up
	ip link set eth0 up
	# An interface that the host does not use, for AF_XDP.
	ip link add eth1 type veth peer name eth1 netns "$FOLDER/net"
	ip link set eth1 up
	$laptop ip link set eth1 up
	$laptop ip addr add 192.0.2.7/24 dev eth0
	$laptop ip link set eth0 up

	alert
	while IFS= read -r command; do
		echo "tap: $command"
		(cd "$FOLDER/tap" && bash -c "$command") 2>"$FOLDER/err" || die "readme-check: FAIL with $?: $(cat "$FOLDER/err")"
	done < <(blocks "tap, first")
	cp "$FOLDER/tap/token" /etc/retroscope/tap.crt "$FOLDER/laptop"
	command=$(blocks "tap, records")
	echo "tap: $command"
	(cd "$FOLDER/tap" && exec bash -c "exec $command") 2>"$FOLDER/words" &
	recorder=$!
	trap 'kill "$recorder" 2>/dev/null || true; wait; umount "$FOLDER/net"' EXIT
	await 'HTTP at' "$FOLDER/words" "$recorder"
	# These packets are sent before the queries begin.
	$laptop bash -c 'for number in 1 2 3; do echo "$number" >/dev/udp/192.0.2.1/9; done'
	asked=0
	ask "" tap
	ask "$laptop" laptop
	[ "$asked" -eq 4 ] || die "readme-check: FAIL: README.md has $asked query commands instead of 4"
	kill -INT "$recorder"
	wait "$recorder" || die "readme-check: FAIL: the recorder ended with $?: $(cat "$FOLDER/words")"
	book
	exit 0
fi

step "commands of README and of the book"
if [ "$(id -u)" -ne 0 ]; then
	echo "SKIP: commands of README and of the book (not root)"
	exit 0
fi
for tool in ip ping tshark tcpdump curl jq openssl nsenter; do
	if ! command -v "$tool" >/dev/null; then
		echo "SKIP: commands of README and of the book ($tool is not installed)"
		exit 0
	fi
done
RETROSCOPE=${1:-$(PROFILE=dev built --bin retroscope)}
FOLDER=$(mktemp -d)
export RETROSCOPE FOLDER
mkdir -p /etc/retroscope
trap 'rm -rf "$FOLDER"; rmdir /etc/retroscope 2>/dev/null || true' EXIT
unshare --net --mount scripts/readme-check.sh inside
echo "readme-check: ok"
