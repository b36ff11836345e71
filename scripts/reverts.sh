#!/usr/bin/env bash
# Reverts fixes one at a time and shows the test that fails: `reverts.sh [NAME…]`. Each file
# NAME.patch in scripts/reverts removes one fix from the code. Its first line is the command of the
# test that must then fail.
#
# By hand, as root and with all tools of the tests: a skipped test detects nothing. Works on HEAD in
# a separate worktree. Without a patch, each test must pass. Exits with 1 if a patch does not apply,
# does not compile, or fails no test. Refresh a patch that no longer applies, or delete it if its
# code is gone.

. "$(dirname "$0")/lib.sh"

target=$(target_dir)
tree=$target/reverts/tree
log=$target/reverts/log
mkdir -p "$target/reverts"
rm -rf "$tree"
git worktree prune
git worktree add --quiet --detach "$tree" HEAD
trap 'git worktree remove --force "$tree"' EXIT
# Tests of real captures read ../shared/traces.
[ ! -e ../shared ] || ln -sfn "$(realpath ../shared)" "$target/reverts/shared"
# Compiling takes most of the time, so nothing is optimised.
export CARGO_TARGET_DIR=$target/reverts/build CARGO_PROFILE_DEV_OPT_LEVEL=0

if [ $# -gt 0 ]; then
	patches=("${@/%/.patch}")
else
	mapfile -t patches < <(cd scripts/reverts && ls -- *.patch)
fi
# Runs the test of a patch in the worktree.
try() {
	(cd "$tree" && bash -c "$1") >"$log" 2>&1 </dev/null
}
step "tests without a patch"
while IFS= read -r command; do
	try "$command" || { tail -n 30 "$log"; die "fails without a patch: $command"; }
done < <(cd scripts/reverts && sed -ns '1s/^# *//p' -- "${patches[@]}" | sort -u)

rows=()
failed=0
for patch in "${patches[@]}"; do
	path=$PWD/scripts/reverts/$patch
	command=$(sed -n '1s/^# *//p' "$path")
	step "${patch%.patch}: $command"
	said=
	: >"$log"
	if ! git -C "$tree" apply "$path"; then
		result="does not apply"
	elif try "$command"; then
		result="NO TEST FAILS"
	elif grep -qE '^error(\[E[0-9]+\])?:.*(could not compile|cannot find|mismatched|expected)' "$log"; then
		result="does not compile"
	else
		result=fails
		# The first panic of the test and the three lines after it, else the last line.
		said=$(grep -A 3 -m 1 'panicked at' "$log" || tail -n 1 "$log")
	fi
	[ "$result" = fails ] || { failed=1; tail -n 30 "$log"; }
	printf '%s\n' "$said"
	git -C "$tree" checkout --quiet -- .
	git -C "$tree" clean -fdq
	rows+=("| ${patch%.patch} | $command | $result |")
done

step "reverted fixes"
printf '%s\n' "| fix | test | without the fix |" "|---|---|---|" "${rows[@]}"
exit "$failed"
