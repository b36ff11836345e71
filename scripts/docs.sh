#!/usr/bin/env bash
# Builds the book of docs/ into book/ of the target directory. With `--install`, as in CI, first
# builds mdBook if it is missing.

. "$(dirname "$0")/lib.sh"

target=$(target_dir)

step "book"
export PATH="$target/tools/bin:$PATH"
if ! command -v mdbook >/dev/null; then
	[ "${1:-}" = --install ] || die "docs: mdBook is missing: scripts/tools.sh mdbook"
	scripts/tools.sh mdbook || {
		echo "SKIP: the book is not built: mdBook cannot be installed" >&2
		exit 0
	}
fi
mdbook build docs --dest-dir "$target/book"
echo "$target/book/index.html"
