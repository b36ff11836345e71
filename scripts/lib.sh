# Functions for the scripts in this folder: `. "$(dirname "$0")/lib.sh"`. Changes to the top folder
# of the checkout.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Prints a headline.
step() {
	printf '\n== %s\n' "$*"
}

# Prints an error message and exits with 1.
die() {
	printf '%s\n' "$*" >&2
	exit 1
}

# Prints cargo's target directory. CARGO_TARGET_DIR or a configuration file may set it.
target_dir() {
	cargo metadata --format-version 1 --no-deps --locked |
		sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

# Builds programs of the workspace and prints their paths, one a line: `built -p retroscope-cli
# --bin retroscope`. Optimised, except with `PROFILE=dev`, which reuses what the tests have
# compiled.
built() {
	cargo build --locked --profile "${PROFILE:-release}" --message-format=json-render-diagnostics "$@" |
		sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

# Installs Debian packages, as root, without recommended packages: `apt_install [OPTION…] PACKAGE…`.
# New services of these packages are neither started nor enabled. Fails if a package is not
# available.
apt_install() (
	policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
	# Exit code 101 forbids invoke-rc.d(8) to start services.
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" || return
	fi
	# Existing services are the user's: do not disable them.
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
