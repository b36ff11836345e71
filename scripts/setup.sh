#!/usr/bin/env bash
# Checks what the build needs, and looks for the tools that the demo and the tests use. As root on Debian or Ubuntu it
# installs the packages that are missing.
#
#   setup.sh build|demo|test           checks what the build uses; what the demo uses too; what the tests use too
#   setup.sh peers|papers              checks what the other queues of the benchmarks use; what `make papers` uses too
#   setup.sh missing LEVEL             prints the packages that are missing, and installs nothing
#
# Nothing can be built without Rust, a C compiler and libpcap: if one of them is missing, this script fails, and says what
# to type. Without another tool a test says SKIP: then this script names the packages and succeeds.

. "$(dirname "$0")/lib.sh"

# Every tool: who uses it (root: tests that run as root only), a command, library or header, and the Debian package that has
# it.
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

# Whether a program that uses libpcap can be compiled and linked.
libpcap_works() {
	local out result=0
	out=$(mktemp) || return 1
	printf '#include <pcap/pcap.h>\nint main(void) { return pcap_lib_version() == 0; }\n' |
		cc -x c - -lpcap -o "$out" 2>/dev/null || result=$?
	rm -f "$out"
	return "$result"
}

# Whether a tool is there.
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

# Prints the missing packages of these users, on one line.
missing() {
	local user tool package packages=' '
	while read -r user tool package; do
		[[ -n $user && " $* " == *" $user "* && $packages != *" $package "* ]] || continue
		is_there "$tool" || packages+="$package "
	done <<<"$tools"
	packages=${packages# }
	echo "${packages% }"
}

# The users of the tools up to a level.
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

# Installs packages; the archive's lists are read anew only if they have to be. Where one package is not to be had, the
# others are installed.
install() {
	local package
	echo "setup: installing $*" >&2
	! apt_install "$@" || return 0
	# A list that cannot be read holds up no package of another one.
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
	die "Rust $wanted or newer is needed: $rustup"
found=$(rustc --version | cut -d ' ' -f 2)
[ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
	die "Rust $wanted or newer is needed, this is $found: rustup update stable"

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
[ -z "$needed" ] || die "make, a C compiler and libpcap's headers are needed: sudo apt-get install $needed"
echo "setup: what needs $packages is skipped: sudo apt-get install $packages" >&2
