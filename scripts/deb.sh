#!/usr/bin/env bash
# Builds the Debian package into debian/ of the target directory, and prints where it is. `PROFILE=dev` takes what the tests have compiled.
#
# `--try`, as root on Debian, installs it then, looks at what it brought, and removes and purges it again; on a system that has no retroscope.

. "$(dirname "$0")/lib.sh"

target=$(target_dir)

command -v dpkg-deb >/dev/null || {
	echo "SKIP: no package is built: no dpkg-deb" >&2
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

step "install, look, remove, purge"
fail() {
	die "deb: FAIL: $*"
}
if dpkg-query -W retroscope >/dev/null 2>&1 || [ -e /etc/retroscope ] || [ -e /var/lib/retroscope ]; then
	fail "there is a retroscope on this system already"
fi
trap 'dpkg --purge retroscope >/dev/null 2>&1 || true' EXIT
export DEBIAN_FRONTEND=noninteractive
dpkg --unpack "$package" >/dev/null
# What it depends on, and is missing.
apt-get update -q >/dev/null </dev/null
apt-get install -qy --fix-broken --no-install-recommends </dev/null
[ "$(dpkg-query -W -f '${Status}' retroscope)" = "install ok installed" ] || dpkg --configure retroscope
[ "$(dpkg-query -W -f '${Status}' retroscope)" = "install ok installed" ] || fail "it is not installed"
files=$(dpkg-query -L retroscope)
for file in /usr/bin/retroscope /etc/retroscope/retroscope.toml /etc/logrotate.d/retroscope /usr/lib/sysusers.d/retroscope.conf \
	/usr/share/man/man1/retroscope.1.gz /usr/share/man/man1/retroscope-record.1.gz \
	/usr/share/bash-completion/completions/retroscope /usr/share/zsh/vendor-completions/_retroscope \
	/usr/share/fish/vendor_completions.d/retroscope.fish /usr/share/doc/retroscope/copyright \
	/usr/share/doc/retroscope/docs/trigger.svg /usr/share/doc/retroscope/changelog.gz /usr/share/doc/retroscope/examples/retroscope.toml; do
	grep -qx "$file" <<<"$files" || fail "$file is not in it: $files"
done
unit=$(grep -E '/systemd/system/retroscope\.service$' <<<"$files") || fail "it has no unit: $files"
getent passwd retroscope | grep -q ':/var/lib/retroscope:.*nologin$' || fail "its user: $(getent passwd retroscope)"
/usr/bin/retroscope --version
/usr/bin/retroscope record --config /etc/retroscope/retroscope.toml --check-config
/usr/bin/retroscope record --config /usr/share/doc/retroscope/examples/retroscope.toml --check-config
if command -v systemd-analyze >/dev/null; then
	said=$(systemd-analyze verify "$unit" 2>&1 | grep retroscope || true)
	[ -z "$said" ] || fail "$said"
	systemd-analyze security --offline=true --threshold=30 --no-pager "$unit" | tail -n 1 || fail "the unit lets too much through: docs/service.md"
else
	echo "SKIP: the unit is not verified: no systemd-analyze" >&2
fi
if command -v logrotate >/dev/null; then
	logrotate --debug /etc/logrotate.d/retroscope 2>&1 | grep -i error && fail "logrotate refuses its file"
else
	echo "SKIP: the file for logrotate is not checked: no logrotate" >&2
fi
if command -v systemctl >/dev/null; then
	# It could be enabled, and is not.
	state=$(systemctl --root=/ is-enabled retroscope.service || true)
	[ "$state" = disabled ] || fail "it is $state"
fi
echo "SKIP: the unit is not started: that takes a systemd that runs this system" >&2

# Dumps stay when it is removed, and its configuration.
install -d -o retroscope -g retroscope -m 0750 /var/lib/retroscope
touch /var/lib/retroscope/dump.pcapng
dpkg --remove retroscope
[ ! -e /usr/bin/retroscope ] || fail "it is still there"
[ -e /var/lib/retroscope/dump.pcapng ] || fail "a dump was removed"
[ -e /etc/retroscope/retroscope.toml ] || fail "its configuration was removed"
dpkg --purge retroscope
while IFS= read -r file; do
	case $file in
	*retroscope*) [ ! -e "$file" ] || fail "$file is left" ;;
	esac
done <<<"$files"
[ ! -e /var/lib/retroscope ] || fail "/var/lib/retroscope is left"
echo "deb: ok"
