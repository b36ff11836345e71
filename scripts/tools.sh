#!/usr/bin/env bash
# Compiles the tools that are named, of `mdbook` and `cargo-deb`, into tools/bin of the target directory, unless they are on PATH already.
# Fails if a tool cannot be had.

. "$(dirname "$0")/lib.sh"

target=$(target_dir)
# Their own speed does not matter here, and the time to compile them does.
export PATH="$target/tools/bin:$PATH" CARGO_TARGET_DIR="$target/tools/build" CARGO_PROFILE_DEV_DEBUG=false
for tool in "$@"; do
	case $tool in
	mdbook) command -v mdbook >/dev/null || options=(mdbook --version 0.4.52 --no-default-features) ;;
	cargo-deb) [ "$(cargo deb --version 2>/dev/null)" = "cargo-deb 3.8.0" ] || options=(cargo-deb --version 3.8.0) ;;
	*) die "tools: there is no $tool" ;;
	esac
	[ -z "${options:-}" ] || cargo install "${options[@]}" --locked --debug --root "$target/tools"
	unset options
done
