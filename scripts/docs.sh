#!/usr/bin/env bash
# Builds the book of docs/ into book/ of the target directory. `--install`, as CI does, builds mdBook first where it is missing.

. "$(dirname "$0")/lib.sh"

MDBOOK=0.4.52
target=$(target_dir)

step "book"
export PATH="$target/tools/bin:$PATH"
install="cargo install mdbook --locked --version $MDBOOK"
if ! command -v mdbook >/dev/null; then
	[ "${1:-}" = --install ] || die "docs: mdBook is missing: $install"
	CARGO_TARGET_DIR="$target/tools/build" CARGO_PROFILE_DEV_DEBUG=false $install --no-default-features --debug --root "$target/tools" || {
		echo "SKIP: the book is not built: mdBook cannot be installed" >&2
		exit 0
	}
fi
mdbook build docs --dest-dir "$target/book"
echo "$target/book/index.html"
