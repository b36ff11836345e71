#!/usr/bin/env bash
# Checks retroscope-ring as others get it: the package builds without this workspace, and the interface changes as the
# version says.
#
# `crate.sh [REV]` compares the interface with a commit: without REV with the newest release, and before the first
# release with the previous commit.

. "$(dirname "$0")/lib.sh"

step "retroscope-ring as a package"
# A change that is not committed is tried too.
cargo package --locked --quiet --allow-dirty -p retroscope-ring

step "the interface of retroscope-ring"
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
	echo "SKIP: cargo-semver-checks is not installed: the interface of retroscope-ring is not compared (cargo install cargo-semver-checks)" >&2
elif ! is_there "$rev"; then
	echo "SKIP: the commit before this one is not here: the interface of retroscope-ring is not compared" >&2
elif ! cargo semver-checks -p retroscope-ring --baseline-rev "$rev"; then
	[ "$is_release" = no ] || die "crate: the interface changed since $rev more than the version says"
	echo "crate: the interface changed since $rev. No version is released, so it may."
fi
