#!/usr/bin/env bash
# Checks what the build needs. As root on Debian or Ubuntu it installs the Debian packages that are missing, else it
# says with which command to do that.

. "$(dirname "$0")/lib.sh"

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
rustup='curl --proto =https --tlsv1.2 -sSf https://sh.rustup.rs | sh'
command -v cargo >/dev/null && command -v rustc >/dev/null ||
	die "Rust $wanted or newer is needed: $rustup"
found=$(rustc --version | cut -d ' ' -f 2)
[ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
	die "Rust $wanted or newer is needed, this is $found: rustup update stable"

# Whether a program that uses libpcap can be compiled and linked.
libpcap_works() {
	local out
	out=$(mktemp) || return 1
	printf '#include <pcap/pcap.h>\nint main(void) { return pcap_lib_version() == 0; }\n' |
		cc -x c - -lpcap -o "$out" 2>/dev/null
	local result=$?
	rm -f "$out"
	return "$result"
}

if ! command -v cc >/dev/null || ! libpcap_works; then
	packages='build-essential libpcap-dev'
	if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
		echo "installing $packages" >&2
		export DEBIAN_FRONTEND=noninteractive
		# shellcheck disable=SC2086
		{ apt-get update -q && apt-get install -qy --no-install-recommends $packages; } >&2 </dev/null
		libpcap_works || die "libpcap still cannot be compiled against after installing $packages"
	else
		die "a C compiler and libpcap's headers are needed: sudo apt-get install $packages"
	fi
fi
