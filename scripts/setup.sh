#!/usr/bin/env bash
# Checks for the requirements of the build, and for the tools of the demo and the tests. As root on
# Debian or Ubuntu, installs missing packages.
#
#   setup.sh build|demo|test   checks for tools of the build; also of the demo; also of the tests
#   setup.sh peers|papers      checks for queues of benchmarks; also for `make papers`
#   setup.sh missing LEVEL     prints the missing packages, and installs nothing
#
# If Rust, make, a C compiler or libpcap is missing, this script fails and prints the command that
# installs it. If another tool is missing, this script prints its package and succeeds. Tests
# without a tool print SKIP.

. "$(dirname "$0")/lib.sh"

# Tools, one a line: its user (root: tests that need root); a command, library or header; its Debian
# package.
tools='
	build make           build-essential
	build cc             build-essential
	build libpcap        libpcap-dev
	demo ip              iproute2
	test capinfos        wireshark-common
	test curl            curl
	test libnss_wrapper.so libnss-wrapper
	test openssl         openssl
	test ping            iputils-ping
	test promtool        prometheus
	test python3         python3
	test shellcheck      shellcheck
	test tcpdump         tcpdump
	test tshark          tshark
	root setcap          libcap2-bin
	peers pkg-config    pkg-config
	peers libdpdk.pc    libdpdk-dev
	peers concurrentqueue/concurrentqueue.h libconcurrentqueue-dev
	peers readerwriterqueue/readerwriterqueue.h libreaderwriterqueue-dev
	peers boost/lockfree/queue.hpp libboost-dev
	peers tbb/concurrent_queue.h libtbb-dev
	papers valgrind      valgrind
	papers tcpdump       tcpdump
	papers dumpcap       wireshark-common
	papers fio           fio
'

# Succeeds if a program that uses libpcap can be compiled and linked.
libpcap_works() {
	local out result=0
	out=$(mktemp) || return 1
	printf '#include <pcap/pcap.h>\nint main(void) { return pcap_lib_version() == 0; }\n' |
		cc -x c - -lpcap -o "$out" 2>/dev/null || result=$?
	rm -f "$out"
	return "$result"
}

# Succeeds if a tool is installed.
is_there() {
	case $1 in
	libpcap) libpcap_works ;;
	# ld.so(8) reports a library that it does not find.
	*.so) [ -z "$(LD_PRELOAD=$1 /bin/true 2>&1)" ] ;;
	*.pc) pkg-config --exists "${1%.pc}" 2>/dev/null ;;
	*.h | *.hpp) printf '#include <%s>\n' "$1" | c++ -std=c++17 -fsyntax-only -x c++ - 2>/dev/null ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

# Prints the missing packages of the given users, on one line.
missing() {
	local user tool package packages=' '
	while read -r user tool package; do
		[[ -n $user && " $* " == *" $user "* && $packages != *" $package "* ]] || continue
		is_there "$tool" || packages+="$package "
	done <<<"$tools"
	packages=${packages# }
	echo "${packages% }"
}

# Prints the users of tools for a level.
users_of() {
	case $1 in
	build) echo build ;;
	demo) echo build demo ;;
	test) [ "$(id -u)" -eq 0 ] && echo build demo test root || echo build demo test ;;
	peers) echo build peers ;;
	papers) echo build peers papers ;;
	*) die "usage: setup.sh [missing] build|demo|test|peers|papers" ;;
	esac
}

can_install() {
	[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null
}

# Installs packages. Updates the package lists only after a failure. If one package is not
# available, installs the others.
install() {
	local package
	echo "setup: installing $*" >&2
	! apt_install "$@" || return 0
	# A list that cannot be updated must not prevent packages of other lists.
	apt-get update -q -o Acquire::Retries=0 >&2 </dev/null || true
	! apt_install "$@" || return 0
	[ $# -gt 1 ] || return 0
	for package in "$@"; do
		apt_install "$package" || true
	done
}

if [ "${1:-}" = missing ]; then
	users=$(users_of "${2:-}")
	# shellcheck disable=SC2086
	missing $users
	exit 0
fi
users=$(users_of "${1:-}")

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
rustup='curl --proto =https --tlsv1.2 -sSf https://sh.rustup.rs | sh'
command -v cargo >/dev/null && command -v rustc >/dev/null ||
	die "Rust $wanted or newer is required: $rustup"
found=$(rustc --version | cut -d ' ' -f 2)
[ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
	die "Rust $wanted or newer is required, found $found: rustup update stable"

# shellcheck disable=SC2086
packages=$(missing $users)
[ -n "$packages" ] || exit 0
if can_install; then
	# shellcheck disable=SC2086
	install $packages
	# shellcheck disable=SC2086
	packages=$(missing $users)
	[ -n "$packages" ] || exit 0
	echo "setup: apt-get could not install $packages" >&2
fi
needed=$(missing build)
[ -z "$needed" ] || die "make, a C compiler and libpcap's headers are required: sudo apt-get install $needed"
echo "setup: parts that need $packages will be skipped: sudo apt-get install $packages" >&2
