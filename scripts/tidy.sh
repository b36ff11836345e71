#!/usr/bin/env bash
# Checks that rustfmt and clippy lack: empty files, blanks at line ends, names in documents, type
# names, faults of scripts.

. "$(dirname "$0")/lib.sh"

step "tidy"
failed=0
complain() {
	echo "tidy: $*" >&2
	failed=1
}

while IFS= read -r file; do
	[ "$(wc -l <"$file")" -ge 2 ] || complain "$file is empty: is its former content still compiled?"
done < <(git ls-files -- '*.rs')

lines=$(wc -l <ARCHITECTURE.md)
[ "$lines" -le 300 ] || complain "ARCHITECTURE.md has $lines lines, the limit is 300: move detail to docs/ or module docs"

while IFS= read -r line; do
	complain "blanks at the end of a line: $line"
done < <(git grep -nI ' $' -- '*.md' '*.sh' '*.toml' '*.rs' Makefile .ci/run || true)

# Tests and files that documents name.
while IFS= read -r named; do
	grep -qs "fn ${named##*::}\b" "crates/${named%%::*}" || complain "docs/dev/features.md names $named, which does not exist"
done < <(grep -oE '`[A-Za-z0-9_/]+\.rs::[a-z0-9_]+`' docs/dev/features.md | tr -d '`' | sort -u)
while IFS=: read -r document line path; do
	path=${path//\`/}
	[ -e "$path" ] || complain "$document:$line names $path, which does not exist"
done < <(git grep -noE '`(bench|contrib|crates|docs|examples|fuzz|scripts)/[A-Za-z0-9_./-]+`' -- '*.md')

# Type names with several definitions. Error, Result, Config, Args and Iter are idiomatic.
shared_max=3
names=$(git grep -hE '^(pub(\([a-z]+\))? )?(unsafe )?(struct|enum|trait|union) [A-Z]' -- 'crates/*/src/*.rs' ':!*test*' |
	sed -E 's/^(pub(\([a-z]+\))? )?(unsafe )?[a-z]+ ([A-Za-z0-9]+).*/\4/' | grep -vxE 'Error|Result|Config|Args|Iter' | sort)
shared=$(uniq -D <<<"$names" | wc -l)
total=$(wc -l <<<"$names")
echo "type names: $total, of which $shared are defined more than once"
if [ $((100 * shared)) -gt $((shared_max * total)) ]; then
	complain "more than $shared_max % of the type names are defined more than once: $(uniq -d <<<"$names" | tr '\n' ' ')"
fi

for script in scripts/*.sh .ci/run; do
	bash -n "$script" || complain "$script does not parse"
	# No script names scripts/lib.sh with its folder. CI starts .ci/run.
	case $script in .ci/run | scripts/lib.sh) continue ;; esac
	grep -q 'By hand' "$script" || git grep -qE "^[^#]*$script" -- Makefile .ci/run scripts ':!scripts/reverts' ":!$script" ||
		complain "nothing calls $script, and it does not say 'By hand'"
done
if command -v shellcheck >/dev/null; then
	# SC2097, SC2098: `NAME=${NAME:-default} command "$NAME"` has the same value in both places where NAME has its default.
	shellcheck -x -P SCRIPTDIR -S warning -s bash -e SC2097,SC2098 scripts/*.sh .ci/run || complain "shellcheck"
else
	echo "SKIP: scripts are not checked: shellcheck is not installed" >&2
fi

[ "$failed" -eq 0 ] || exit 1
echo "tidy: ok"
