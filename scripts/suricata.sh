#!/usr/bin/env bash
# Installs Suricata, whose alerts tests/live/suricata.rs has recorded, where it is missing: as root on Debian, 12 from its backports. Nothing of it is left running.

. "$(dirname "$0")/lib.sh"

if command -v suricata >/dev/null; then
	echo "suricata: is there: $(suricata -V)"
	exit 0
fi
[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || die "suricata: install it: this script does as root, on Debian"

step "Suricata"
list=/etc/apt/sources.list.d/retroscope-suricata.list
trap 'rm -f "$list"' EXIT
release=()
# shellcheck disable=SC1091
if [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = bookworm ]; then
	# Debian 12 has it in its backports alone: a source that is there only now.
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-backports main" >$list
	release=(-t bookworm-backports)
fi
apt-get update -q </dev/null
apt_install "${release[@]}" suricata
suricata -V
