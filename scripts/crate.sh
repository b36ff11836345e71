#!/usr/bin/env bash
# Checks retroscope-ring as its users get it: the package must build without this workspace, and
# changes of the public API must match the version.
#
# `crate.sh [REV]` compares the public API with the commit REV. The default is the newest release,
# or before the first release the previous commit.

. "$(dirname "$0")/lib.sh"

step "retroscope-ring as a package"
# --allow-dirty: uncommitted changes are included.
cargo package --locked --quiet --allow-dirty -p retroscope-ring

step "public API of retroscope-ring"
is_there() {
	git rev-parse --quiet --verify "$1^{commit}" >/dev/null
}
rev=${1:-}
is_release=yes
[ -z "$rev" ] || is_there "$rev" || die "crate: there is no commit $rev"
[ -n "$rev" ] || rev=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || {
	rev=HEAD^
	is_release=no
}
if ! cargo semver-checks --version >/dev/null 2>&1; then
	echo "SKIP: cargo-semver-checks is not installed: the public API of retroscope-ring is not compared (cargo install cargo-semver-checks)" >&2
elif ! is_there "$rev"; then
	echo "SKIP: the previous commit is not available: the public API of retroscope-ring is not compared" >&2
elif ! cargo semver-checks -p retroscope-ring --baseline-rev "$rev"; then
	[ "$is_release" = no ] || die "crate: the changes of the public API since $rev need another version"
	echo "crate: the public API changed since $rev, as is allowed before the first release"
fi
