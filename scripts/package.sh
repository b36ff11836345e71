#!/usr/bin/env bash
# Builds a release: the Debian package and, if docker or podman runs, a container image. `package.sh
# OUT` stores both and their checksums in the folder OUT, as contrib/github/release.yml does.

. "$(dirname "$0")/lib.sh"

out=${1:-}
package=$(scripts/deb.sh | tail -n 1)
[ -f "$package" ] || die "package: no Debian package was built"
version=$(dpkg-deb --field "$package" Version)
image=
for builder in docker podman; do
	if "$builder" info >/dev/null 2>&1; then
		step "container image"
		image=retroscope:$version
		"$builder" build --file contrib/container/Dockerfile --tag "$image" --tag retroscope:latest "$(dirname "$package")"
		"$builder" run --rm "$image" --version
		break
	fi
done
[ -n "$image" ] || echo "SKIP: no container image is built: neither docker nor podman runs" >&2
echo "$package"
[ -z "$image" ] || echo "$image"
[ -n "$out" ] || exit 0

step "release files"
mkdir -p "$out"
cp "$package" "$out/"
[ -z "$image" ] || "$builder" save "$image" | gzip -9n >"$out/retroscope-$version-image.tar.gz"
(cd "$out" && sha256sum -- *.deb *.tar.gz 2>/dev/null >SHA256SUMS || sha256sum -- *.deb >SHA256SUMS)
cat "$out/SHA256SUMS"
