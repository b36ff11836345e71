#!/usr/bin/env bash
# Installs Suricata for crates/cli/tests/live/suricata.rs if it is missing. Needs root and Debian;
# Debian 12 has it in backports. Does not leave its service running.

. "$(dirname "$0")/lib.sh"

if command -v suricata >/dev/null; then
	echo "suricata: already installed: $(suricata -V)"
	exit 0
fi
[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || die "suricata: not installed. This script installs it as root on Debian"

step "Suricata"
list=/etc/apt/sources.list.d/retroscope-suricata.list
trap 'rm -f "$list"' EXIT
release=()
# shellcheck disable=SC1091
if [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = bookworm ]; then
	# Debian 12 has Suricata only in backports. This source exists only during the script.
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-backports main" >$list
	release=(-t bookworm-backports)
fi
apt-get update -q </dev/null
apt_install "${release[@]}" suricata
suricata -V
