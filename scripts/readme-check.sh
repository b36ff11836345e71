#!/usr/bin/env bash
# Runs the commands of README's "The packets of an alert" and "The last 30 seconds of this host" as they stand there, on two machines: network namespaces with a
# link between them.
#
# Above each block a comment says where it runs: on the tap (`first`, before it records; `records`, in the background; or while it does), or on the laptop. The
# laptop is 192.0.2.7 and is given the token and the certificate. Each command that asks has to print the laptop's packets, and `query` that they are all. The alert's
# are run on the tap too; where there is no Suricata, its line is written as it would be.
#
# Needs root, ip, ping, tshark, curl and openssl, and says SKIP without. What it makes outside its temporary folder is in a mount namespace of its own.

. "$(dirname "$0")/lib.sh"

# The blocks under a comment, a command a line.
blocks() {
	awk -v where="<!-- $1 -->" '
		$0 == where { wanted = 1; next }
		wanted && /^```console$/ { inside = 1; next }
		inside && /^```$/ { inside = wanted = 0 }
		inside { sub(/^\$ /, ""); if (sub(/ \\$/, " ")) printf "%s", $0; else print }
	' README.md
}

# Runs the commands of a block, which have to print the laptop's packets.
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

# Waits until a file has a line with these words, while a process runs.
await() {
	local waited
	for ((waited = 0; waited < 600; waited++)); do
		grep -qs "$1" "$2" && return
		kill -0 "$3" 2>/dev/null || break
		sleep 0.1
	done
	die "readme-check: FAIL: $(cat "$2")"
}

# The five commands of an alert.
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
	[ "${#commands[@]}" -eq 2 ] || die "readme-check: FAIL: ${#commands[@]} commands of an alert were found in README.md, and not 2"
	echo "tap: ${commands[0]}"
	bash -c "${commands[0]}" >"$FOLDER/out" || die "readme-check: FAIL with $?: $(cat "$FOLDER/out")"
	if [ -z "$suricata" ]; then
		printf '{"timestamp":"%s","event_type":"alert","src_ip":"192.0.2.1","dest_ip":"192.0.2.7","proto":"ICMP","alert":{"signature_id":1,"signature":"somebody pings"}}\n' \
			"$(date -u +%FT%T.%6N+0000)" >>"$log/eve.json"
	fi
	echo "tap: ${commands[1]}"
	# As often as it takes for the dump to be there.
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

if [ "${1:-}" = inside ]; then
	# Of our own, and gone with us.
	mount -t tmpfs none /etc/retroscope
	mount -t tmpfs none /run/retroscope
	mount -t tmpfs none /var/tmp
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
	# Packets of the laptop, which are over when they are asked for.
	$laptop bash -c 'for number in 1 2 3; do echo "$number" >/dev/udp/192.0.2.1/9; done'
	asked=0
	ask "" tap
	ask "$laptop" laptop
	[ "$asked" -eq 4 ] || die "readme-check: FAIL: $asked commands were found in README.md, and not 4"
	kill -INT "$recorder"
	wait "$recorder" || die "readme-check: FAIL: the recorder ended with $?: $(cat "$FOLDER/words")"
	exit 0
fi

step "README's commands"
if [ "$(id -u)" -ne 0 ]; then
	echo "SKIP: README's commands (not root)"
	exit 0
fi
for tool in ip ping tshark curl openssl nsenter; do
	if ! command -v "$tool" >/dev/null; then
		echo "SKIP: README's commands ($tool is not installed)"
		exit 0
	fi
done
RETROSCOPE=${1:-$(PROFILE=dev built --bin retroscope)}
FOLDER=$(mktemp -d)
export RETROSCOPE FOLDER
mkdir -p /etc/retroscope /run/retroscope
trap 'rm -rf "$FOLDER"; rmdir /etc/retroscope /run/retroscope 2>/dev/null || true' EXIT
unshare --net --mount scripts/readme-check.sh inside
echo "readme-check: ok"
