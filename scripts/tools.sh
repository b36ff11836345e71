#!/usr/bin/env bash
# Compiles the named tools, `mdbook` or `cargo-deb`, into tools/bin of the target directory, unless
# they are on PATH. Fails if a tool cannot be installed.

. "$(dirname "$0")/lib.sh"

target=$(target_dir)
# The time to compile the tools matters, their speed does not.
export PATH="$target/tools/bin:$PATH" CARGO_TARGET_DIR="$target/tools/build" CARGO_PROFILE_DEV_DEBUG=false
for tool in "$@"; do
	case $tool in
	mdbook) command -v mdbook >/dev/null || options=(mdbook --version 0.4.52 --no-default-features) ;;
	cargo-deb) [ "$(cargo deb --version 2>/dev/null)" = "cargo-deb 3.8.0" ] || options=(cargo-deb --version 3.8.0) ;;
	*) die "tools: unknown tool $tool" ;;
	esac
	[ -z "${options:-}" ] || cargo install "${options[@]}" --locked --debug --root "$target/tools"
	unset options
done
