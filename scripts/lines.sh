#!/usr/bin/env bash
# Counts lines of Rust for each crate, without blank lines and comments, and the share of comments
# outside of tests.
#
# Tests are files in `tests/` or `examples/`, `*tests.rs`, `rig.rs`, and each file's part after `mod
# tests {`. A line that begins with `//` is a comment. The product is everything except `bench`,
# `fuzz` and `crates/fuzz`.

. "$(dirname "$0")/lib.sh"

git ls-files -z --cached --others --exclude-standard '*.rs' | xargs -0 awk '
	FNR == 1 {
		split(FILENAME, path, "/")
		crate = path[1] == "crates" ? path[2] : path[1]
		is_test = FILENAME ~ /(^|\/)(tests|examples)\/|tests\.rs$|(^|\/)rig\.rs$/
		crates[crate]
	}
	/^[ \t]*mod tests \{/ { is_test = 1 }
	/^[ \t]*$/ { next }
	{ lines[crate, is_test, /^[ \t]*\/\//]++ }
	END {
		for (crate in crates) {
			show(crate, lines[crate, 0, 0], lines[crate, 0, 1], lines[crate, 1, 0], "sort")
			if (crate == "bench" || crate == "fuzz") continue
			code += lines[crate, 0, 0]; comments += lines[crate, 0, 1]; tests += lines[crate, 1, 0]
		}
		close("sort")
		show("product", code, comments, tests, "cat")
	}
	function show(name, code, comments, tests, into) {
		printf "%-10s %6d lines, %2.0f %% comments, %6d lines of tests\n", name, code, 100 * comments / (code + comments), tests | into
	}
'
