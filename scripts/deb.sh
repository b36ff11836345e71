#!/usr/bin/env bash
# Builds the Debian package into debian/ of the target directory, and prints its path. `PROFILE=dev`
# reuses what the tests have compiled.
#
# `--try` then installs the package, checks it, removes and purges it. Needs root and a Debian
# without retroscope.

. "$(dirname "$0")/lib.sh"

target=$(target_dir)

command -v dpkg-deb >/dev/null || {
	echo "SKIP: the Debian package is not built: dpkg-deb is not installed" >&2
	exit 0
}

step "Debian package"
export PATH="$target/tools/bin:$PATH"
scripts/tools.sh cargo-deb
program=$(built -p retroscope-cli --bin retroscope)
made=$(dirname "$program")/package
rm -rf "$made"
mkdir -p "$made"
"$program" man "$made/man"
gzip -9n "$made"/man/*.1
for shell in bash zsh fish; do
	name=retroscope.$shell
	[ "$shell" != zsh ] || name=_retroscope
	"$program" completions "$shell" >"$made/$name"
done
gzip -9n <CHANGELOG.md >"$made/changelog.gz"
package=$(cargo deb -p retroscope-cli --no-build --profile "${PROFILE:-release}" --locked | tail -n 1)
[ -f "$package" ] || die "deb: no package was built: $package"
echo "$package"
[ "${1:-}" = --try ] || exit 0

step "install, check, remove, purge"
fail() {
	die "deb: FAIL: $*"
}
if dpkg-query -W retroscope >/dev/null 2>&1 || [ -e /etc/retroscope ] || [ -e /var/lib/retroscope ]; then
	fail "this system already has retroscope, or files of it"
fi
trap 'dpkg --purge retroscope >/dev/null 2>&1 || true' EXIT
export DEBIAN_FRONTEND=noninteractive
dpkg --unpack "$package" >/dev/null
# Install missing dependencies.
apt-get update -q >/dev/null </dev/null
apt-get install -qy --fix-broken --no-install-recommends </dev/null
[ "$(dpkg-query -W -f '${Status}' retroscope)" = "install ok installed" ] || dpkg --configure retroscope
[ "$(dpkg-query -W -f '${Status}' retroscope)" = "install ok installed" ] || fail "the package is not installed"
files=$(dpkg-query -L retroscope)
for file in /usr/bin/retroscope /etc/retroscope/retroscope.toml /etc/logrotate.d/retroscope /usr/lib/sysusers.d/retroscope.conf \
	/usr/share/man/man1/retroscope.1.gz /usr/share/man/man1/retroscope-record.1.gz \
	/usr/share/bash-completion/completions/retroscope /usr/share/zsh/vendor-completions/_retroscope \
	/usr/share/fish/vendor_completions.d/retroscope.fish /usr/share/doc/retroscope/copyright \
	/usr/share/doc/retroscope/docs/trigger.svg /usr/share/doc/retroscope/changelog.gz /usr/share/doc/retroscope/examples/retroscope.toml; do
	grep -qx "$file" <<<"$files" || fail "the package lacks $file: $files"
done
unit=$(grep -E '/systemd/system/retroscope\.service$' <<<"$files") || fail "the package has no unit: $files"
getent passwd retroscope | grep -q ':/var/lib/retroscope:.*nologin$' || fail "wrong entry for the user: $(getent passwd retroscope)"
/usr/bin/retroscope --version
/usr/bin/retroscope record --config /etc/retroscope/retroscope.toml --check-config
/usr/bin/retroscope record --config /usr/share/doc/retroscope/examples/retroscope.toml --check-config
if command -v systemd-analyze >/dev/null; then
	said=$(systemd-analyze verify "$unit" 2>&1 | grep retroscope || true)
	[ -z "$said" ] || fail "$said"
	systemd-analyze security --offline=true --threshold=30 --no-pager "$unit" | tail -n 1 || fail "the exposure level of the unit is too high: docs/service.md"
else
	echo "SKIP: the unit is not verified: systemd-analyze is not installed" >&2
fi
if command -v logrotate >/dev/null; then
	logrotate --debug /etc/logrotate.d/retroscope 2>&1 | grep -i error && fail "logrotate reports an error in its configuration"
else
	echo "SKIP: the configuration of logrotate is not checked: logrotate is not installed" >&2
fi
if command -v systemctl >/dev/null; then
	# The installation must not enable the unit.
	state=$(systemctl --root=/ is-enabled retroscope.service || true)
	[ "$state" = disabled ] || fail "the unit is $state instead of disabled"
fi
echo "SKIP: the unit is not started: scripts/systemd.sh does this" >&2

# Removal must keep dumps and the configuration.
install -d -o retroscope -g retroscope -m 0750 /var/lib/retroscope
touch /var/lib/retroscope/dump.pcapng
dpkg --remove retroscope
[ ! -e /usr/bin/retroscope ] || fail "/usr/bin/retroscope still exists"
[ -e /var/lib/retroscope/dump.pcapng ] || fail "a dump was removed"
[ -e /etc/retroscope/retroscope.toml ] || fail "the configuration was removed"
dpkg --purge retroscope
while IFS= read -r file; do
	case $file in
	*retroscope*) [ ! -e "$file" ] || fail "$file still exists" ;;
	esac
done <<<"$files"
[ ! -e /var/lib/retroscope ] || fail "/var/lib/retroscope still exists"
echo "deb: ok"
