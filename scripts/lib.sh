# Sourced by the scripts beside it: `. "$(dirname "$0")/lib.sh"`. Goes to the top of the checkout.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Prints a headline.
step() {
	printf '\n== %s\n' "$*"
}

# Prints a reason and ends.
die() {
	printf '%s\n' "$*" >&2
	exit 1
}

# Prints cargo's target directory, wherever CARGO_TARGET_DIR or a configuration file put it.
target_dir() {
	cargo metadata --format-version 1 --no-deps --locked |
		sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

# Builds programs of the workspace and prints where cargo put them, a line each: `built -p retroscope-cli --bin retroscope`. Optimised, but for `PROFILE=dev`,
# which takes what the tests have compiled.
built() {
	cargo build --locked --profile "${PROFILE:-release}" --message-format=json-render-diagnostics "$@" |
		sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

# Installs Debian packages, as root: `apt_install [OPTION…] PACKAGE…`. What a package only recommends is left out, and its
# service is not started, now or at the next boot. Fails if a package cannot be had.
apt_install() (
	policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
	# invoke-rc.d(8) asks it whether it may start a service: no.
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" || return
	fi
	# Services that are there already are the user's.
	services=()
	if command -v systemctl >/dev/null; then
		for package in "$@"; do
			[[ $package = -* ]] || systemctl cat "$package.service" >/dev/null 2>&1 || services+=("$package.service")
		done
	fi
	DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
		-o Acquire::Retries=0 -o Acquire::http::Timeout=10 "$@" >&2 </dev/null || return
	for service in "${services[@]}"; do
		systemctl disable --now "$service" >/dev/null 2>&1 || true
	done
)
