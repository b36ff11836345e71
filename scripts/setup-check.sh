#!/usr/bin/env bash
# Tests setup.sh, and the last line of test.sh, on simulated machines without some tools: PATH is a
# temporary folder. The scripts run without root. If this script is root, they also run as root,
# with an apt-get that installs into that folder.

. "$(dirname "$0")/lib.sh"

step "setup.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
mkdir "$folder/bin" "$folder/tree"
cp -r Cargo.toml scripts .ci "$folder/tree"
# libnss_wrapper is not found through PATH, so the result would depend on the real machine.
sed -i /libnss_wrapper/d "$folder/tree/scripts/setup.sh"
export POLICY_RC_D=$folder/policy-rc.d

for name in bash cat chmod cut dirname env grep head id mktemp rm sed sort tee tr uniq; do
	ln -s "$(command -v "$name")" "$folder/bin"
done
program() {
	printf '#!/bin/sh\n%s\n' "$2" >"$folder/bin/$1"
	chmod 755 "$folder/bin/$1"
}
umask 022
chmod -R a+rX "$folder"
program rustc "echo rustc $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml).0"
program cargo '[ "$1" != test ] || echo "SKIP: this"'

# Simulates a machine with all tools except the named tools.
machine_without() {
	local tool
	for tool in make ip capinfos curl openssl ping promtool python3 setcap shellcheck tcpdump tshark; do
		program "$tool" true
	done
	program cc "cat >/dev/null; [ -e '$folder/libpcap' ]"
	touch "$folder/libpcap"
	rm -f "$folder/bin/apt-get" "$folder/calls"
	for tool in "$@"; do
		rm -f "$folder/bin/$tool" "$folder/$tool"
	done
}

# Adds an apt-get. $1 may contain `network` (the archive can be reached) and `lists` (package lists
# exist). The archive lacks the package $2.
apt_get() {
	rm -f "$folder/network" "$folder/lists"
	case $1 in *network*) touch "$folder/network" ;; esac
	case $1 in *lists*) touch "$folder/lists" ;; esac
	program apt-get "cd '$folder'; echo \"\$*\" >>calls"'
		[ -e network ] || exit 100
		[ "$1" != update ] || { touch lists; exit; }
		[ -e lists ] || exit 100
		for package; do [ "$package" != '"${2:-none}"' ] || exit 100; done
		for package; do
			for tool in $(sed -n "s/^\t[a-z]* \([^ ]*\) *$package\$/\1/p" tree/scripts/setup.sh); do
				case $tool in
				libpcap) touch libpcap ;;
				cc) printf "#!/bin/sh\ncat >/dev/null; [ -e \"$PWD/libpcap\" ]\n" >bin/cc ;;
				*) printf "#!/bin/sh\n" >"bin/$tool" ;;
				esac
				[ ! -e "bin/$tool" ] || chmod 755 "bin/$tool"
			done
		done'
	ln -sf "$(command -v touch)" "$folder/bin"
}

# Runs a script of the copy. Sets $code to its exit code and $said to its output.
run() {
	code=0
	said=$(cd "$folder/tree" && "$@" 2>&1) || code=$?
}
environment=("$(command -v env)" PATH="$folder/bin")
as_nobody=()
[ "$(id -u)" -ne 0 ] || as_nobody=("$(command -v setpriv)" --reuid 65534 --regid 65534 --clear-groups)
nobody() {
	run "${as_nobody[@]}" "${environment[@]}" "$@"
}
root() {
	run "${environment[@]}" "$@"
}
fail() {
	die "setup-check: FAIL: $1: exit code $code: $said"
}
# Checks the exit code, and strings that the output must contain, or after `not` must not contain.
expect() {
	local part is_wanted=yes
	[ "$code" -eq "$1" ] || fail "the exit code should be $1"
	shift
	for part in "$@"; do
		case $part in
		not) is_wanted=no ;;
		*) [[ $is_wanted = yes && $said = *"$part"* || $is_wanted = no && $said != *"$part"* ]] || fail "$part" ;;
		esac
	done
}

machine_without
nobody scripts/setup.sh test
expect 0 not tshark
machine_without promtool tshark capinfos ip
nobody scripts/setup.sh missing test
expect 0 'iproute2 wireshark-common prometheus tshark'
nobody scripts/setup.sh test
expect 0 'sudo apt-get install iproute2 wireshark-common prometheus tshark'
# Missing tools of the tests must not affect other levels.
nobody scripts/setup.sh demo
expect 0 'sudo apt-get install iproute2' not tshark
nobody scripts/setup.sh build
expect 0 not install
[ -z "$said" ] || fail "nothing is missing"
for level in build demo test; do
	machine_without libpcap tshark
	nobody scripts/setup.sh "$level"
	expect 1 'sudo apt-get install libpcap-dev' not tshark
	machine_without cc
	nobody scripts/setup.sh "$level"
	expect 1 'sudo apt-get install build-essential libpcap-dev'
done
# The last line of the tests.
machine_without promtool
nobody scripts/test.sh
expect 0
[[ ${said##*$'\n'} = '2 parts '*'sudo apt-get install prometheus'* ]] || fail "the last line"
machine_without
nobody scripts/test.sh
expect 0
[[ ${said##*$'\n'} = '2 parts '* ]] || fail "the last line"

if [ "$(id -u)" -ne 0 ]; then
	echo "SKIP: setup.sh as root (not root)" >&2
	exit 0
fi
machine_without cc libpcap promtool tshark setcap
apt_get network,lists
root scripts/setup.sh test
expect 0 not 'sudo apt-get'
[ "$(wc -l <"$folder/calls")" -eq 1 ] || fail "called more than once: $(cat "$folder/calls")"
[ -e "$folder/libpcap" ] && [ -e "$folder/bin/setcap" ] || fail "nothing was installed"
machine_without tshark
apt_get network
root scripts/setup.sh test
expect 0 not 'sudo apt-get'
grep -q '^update' "$folder/calls" && [ -e "$folder/bin/tshark" ] || fail "the package lists were not updated"
# setup.sh must report a package that the archive lacks, and install the others.
machine_without tshark promtool
apt_get network,lists prometheus
root scripts/setup.sh test
expect 0 'could not install prometheus' 'sudo apt-get install prometheus' not 'install tshark'
[ -e "$folder/bin/tshark" ] || fail "tshark is not installed"
# Without a network, missing tools are no error, but a missing libpcap is.
machine_without tshark promtool
apt_get none
root scripts/setup.sh test
expect 0 'could not install prometheus tshark'
machine_without libpcap
apt_get none
root scripts/setup.sh test
expect 1 'could not install libpcap-dev' 'sudo apt-get install libpcap-dev'
! grep -q 'apt-get install' .ci/run || die "setup-check: FAIL: .ci/run has its own list of packages"
echo "setup-check: ok"
