#!/usr/bin/env bash
# Tests the service under a running systemd, in a container with a separate Debian and network.
# `systemd.sh [PACKAGE]` installs PACKAGE, by default that of deb.sh. It then starts, queries,
# reloads and stops the service, and purges the package. By hand, as root on Debian with
# systemd-container, debootstrap and a network.

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
# The package is built for this release of Debian.
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
# Waits until a command succeeds, for about 30 s.
until_it() {
	for _ in {1..150}; do
		! within bash -c "$1" >/dev/null 2>&1 || return 0
		sleep 0.2
	done
	fail "never succeeded: $1"
}

until_it "systemctl is-system-running"
step "install, enable, start"
within dpkg --install /root/retroscope.deb
[ "$(within systemctl is-enabled retroscope)" = disabled ] || fail "the service is enabled"
within ip link add v0 type veth peer name v1
within ip link set v0 up
within ip link set v1 up
within sed -i 's/"eth0"/"v1"/; s/"1GiB"/"64MiB"/; s/^min-free.*/min-free = "1MiB"/' /etc/retroscope/retroscope.toml
# Returns when the service has reported that it is ready.
within systemctl enable --now retroscope || fail "the service does not start"
until_it "systemctl show --property StatusText retroscope | grep history"
step "a member of the group can query, other users cannot"
within useradd --groups retroscope member
within useradd stranger
within runuser --user member -- retroscope status || fail "a member of the group cannot query"
! within runuser --user stranger -- retroscope status || fail "a user outside of the group can query"
step "trigger, reload, stop"
within runuser --user member -- retroscope trigger || fail "a member of the group cannot trigger"
until_it "ls /var/lib/retroscope/*-manual.json"
within systemctl reload retroscope || fail "the service does not reload"
until_it "journalctl --unit retroscope | grep 'reloaded /etc/retroscope/retroscope.toml'"
within systemctl stop retroscope
[ "$(within systemctl show --value --property Result retroscope)" = success ] || fail "the service fails when it stops"
step "purge"
within systemctl start retroscope
within dpkg --purge retroscope
left=$(within find /etc /usr /var/lib /run -xdev -name '*retroscope*' -not -path '/var/lib/dpkg/*')
[ -z "$left" ] || fail "the purge leaves $left"
echo "systemd: ok"
