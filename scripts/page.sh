#!/usr/bin/env bash
# Builds the web page of page/ into crates/api/page/, which the program embeds. Uses the versions of
# the lockfile.
#
#   page.sh build   builds the page, and page/LICENSES.md
#   page.sh check   type check and unit tests; fails if a build differs by a byte from the committed files
#   page.sh test    tests of the page in Chromium against a recorder, as root: see page/e2e/
#
# Prints SKIP without the Node version of page/.nvmrc, or if npm must install packages and cannot
# reach its registry. Other versions of Node may build different bytes.

. "$(dirname "$0")/lib.sh"

skip() {
	printf 'SKIP: the page is %s: %s\n' "$unchecked" "$*" >&2
	exit 0
}

# Installs the packages of the lockfile, if page/node_modules does not have them.
packages() {
	local wanted found log
	wanted=$(cat page/.nvmrc)
	found=$(node --version 2>/dev/null || echo none)
	[ "${found#v}" != none ] && command -v npm >/dev/null || skip "no Node with npm (version $wanted: https://nodejs.org)"
	[[ $found = v$wanted.* ]] || skip "Node $wanted is required, found $found"
	! cmp -s page/package-lock.json page/node_modules/.installed-lock.json || return 0
	step "packages"
	log=$(mktemp)
	# No package may run install scripts.
	if ! (cd page && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) 2>"$log"; then
		cat "$log" >&2
		! grep -qE 'EAI_AGAIN|ENOTFOUND|ECONN|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|SOCKET_TIMEOUT|E40[37]|E429|E5[0-9][0-9]' "$log" ||
			skip "npm cannot reach its registry"
		die "page: npm ci failed"
	fi
	rm -f "$log"
	cp page/package-lock.json page/node_modules/.installed-lock.json
}

case ${1:-} in
build)
	unchecked="not built"
	packages
	step "page"
	(cd page && npm run --silent build -- --logLevel warn)
	;;
check)
	unchecked="not checked"
	packages
	step "page: types and unit tests"
	(cd page && npm run --silent check && npm test --silent)
	step "page: the committed files"
	built=$(mktemp -d)
	trap 'rm -rf "$built"' EXIT
	(cd page && OUT="$built" npm run --silent build -- --logLevel warn)
	diff -r "$built/page" crates/api/page && diff "$built/LICENSES.md" page/LICENSES.md ||
		die "page: crates/api/page/ or page/LICENSES.md is out of date: run make page"
	lines=$(git ls-files page/src page/index.html | xargs cat | wc -l)
	bytes=$(cat crates/api/page/* | gzip -9 | wc -c)
	echo "page: $lines lines, $bytes bytes compressed"
	[ "$lines" -le 6000 ] || die "page: more than 6000 lines"
	[ "$bytes" -le 100000 ] || die "page: more than 100 kB compressed"
	;;
test)
	unchecked="not tested in a browser"
	packages
	[ "$(id -u)" -eq 0 ] || skip "not root"
	command -v "${CHROMIUM:-chromium}" >/dev/null || skip "no Chromium (apt-get install chromium)"
	command -v tcpdump >/dev/null || skip "no tcpdump (apt-get install tcpdump)"
	RETROSCOPE=${RETROSCOPE:-$(PROFILE=dev built -p retroscope-cli --bin retroscope)}
	export RETROSCOPE
	step "page: in Chromium"
	# The namespace and its interfaces disappear with its last process.
	unshare -n page/e2e/inside.sh
	;;
*)
	die "usage: page.sh build|check|test"
	;;
esac
