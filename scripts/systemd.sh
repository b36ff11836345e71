#!/usr/bin/env bash
# Tries the service under a systemd that runs: in a container with a Debian and a network of its own it installs the package (the one that is named, else deb.sh's),
# starts, asks, reloads and stops the service, and purges it. By hand, as root on Debian with systemd-container, debootstrap and a network.

[ $# -eq 0 ] || set -- "$(realpath "$1")"
. "$(dirname "$0")/lib.sh"

for program in systemd-nspawn debootstrap; do
	command -v "$program" >/dev/null || die "systemd: no $program: apt install systemd-container debootstrap"
done
package=${1:-$(scripts/deb.sh | tail -n 1)}
step "a container"
folder=$(mktemp -d)
container=
cleanup() {
	if [ -n "$container" ]; then
		kill "$container" && wait "$container" || true
	fi
	rm -rf --one-file-system "$folder"
}
trap cleanup EXIT
libpcap=$(dpkg-deb --field "$package" Depends | grep -o 'libpcap[^ ,]*')
# For this Debian the package was made.
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
debootstrap --variant=minbase --include="systemd-sysv,iproute2,$libpcap" "$codename" "$folder/tree" >"$folder/log" || die "$(tail -n 5 "$folder/log")"
cp "$package" "$folder/tree/root/retroscope.deb"
systemd-nspawn --boot --directory="$folder/tree" --private-network --register=no --keep-unit --console=pipe </dev/null >"$folder/log" 2>&1 &
container=$!

within() {
	nsenter --target "$(pgrep --parent "$container")" --mount --uts --ipc --net --pid --cgroup -- "$@"
}
fail() {
	within journalctl --unit retroscope --no-pager --output cat --lines 40 >&2 || cat "$folder/log" >&2
	die "systemd: FAIL: $*"
}
# Until a command is true, for 30 s at most.
until_it() {
	for _ in {1..150}; do
		! within bash -c "$1" >/dev/null 2>&1 || return 0
		sleep 0.2
	done
	fail "never: $1"
}

until_it "systemctl is-system-running"
step "install, enable, start"
within dpkg --install /root/retroscope.deb
[ "$(within systemctl is-enabled retroscope)" = disabled ] || fail "it is enabled"
within ip link add v0 type veth peer name v1
within ip link set v0 up
within ip link set v1 up
within sed -i 's/"eth0"/"v1"/; s/"1GiB"/"64MiB"/; s/^min-free.*/min-free = "1MiB"/' /etc/retroscope/retroscope.toml
# Returns when the service has said that it is ready.
within systemctl enable --now retroscope || fail "it does not start"
until_it "systemctl show --property StatusText retroscope | grep history"
step "a member of the group asks, a stranger may not"
within useradd --groups retroscope member
within useradd stranger
within runuser --user member -- retroscope status || fail "a member of the group may not ask"
! within runuser --user stranger -- retroscope status || fail "a stranger may ask"
step "trigger, reload, stop"
within runuser --user member -- retroscope trigger || fail "a member of the group may not trigger"
until_it "ls /var/lib/retroscope/*-manual.json"
within systemctl reload retroscope || fail "it does not reload"
until_it "journalctl --unit retroscope | grep 'reloaded /etc/retroscope/retroscope.toml'"
within systemctl stop retroscope
[ "$(within systemctl show --value --property Result retroscope)" = success ] || fail "it stops badly"
step "purge"
within systemctl start retroscope
within dpkg --purge retroscope
left=$(within find /etc /usr /var/lib /run -xdev -name '*retroscope*' -not -path '/var/lib/dpkg/*')
[ -z "$left" ] || fail "it leaves $left"
echo "systemd: ok"
