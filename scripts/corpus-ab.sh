#!/usr/bin/env bash
# Compares the results of this checkout and of the commit REV for real captures: `corpus-ab.sh REV
# [CAPTURE…]`, by default for all in ../shared/traces. Both programs run `record --reproducible`
# with ten triggers, `flows --eve`, `filter --count`, and `query` of a ring file. By hand. Prints
# differences in dumps (verdicts, marks, names), EVE, counts and messages. Exits with 1 if dumps or
# answers contain different packets, or packets in a different order.

. "$(dirname "$0")/lib.sh"

rev=$(git rev-parse --verify --quiet "${1:-}^{commit}") || die "usage: corpus-ab.sh REV [CAPTURE…]"
shift
if [ $# -gt 0 ]; then
	captures=("$@")
else
	[ -d ../shared/traces ] || die "../shared/traces does not exist: name captures"
	mapfile -t captures < <(find ../shared/traces -name '*.pcap' -o -name '*.pcapng' -o -name '*.cap' | sort)
fi
export PROFILE=${PROFILE:-dev}
folder=$(target_dir)/corpus-ab
tree=$folder/tree
rm -rf "$folder/base" "$folder/new" "$tree"
mkdir -p "$folder/base" "$folder/new"
git worktree prune
git worktree add --quiet --detach "$tree" "$rev"
trap 'git worktree remove --force "$tree"' EXIT
step "building $(git rev-parse --short "$rev") and this checkout"
(cd "$tree" && export CARGO_TARGET_DIR=$folder/build && cp "$(built -p retroscope-cli --bin retroscope)" "$folder/base/program")
cp "$(built -p retroscope-cli --bin retroscope)" "$folder/new/program"
text=$(built -p retroscope-pcapfile --example pcapng_text)

rules=(tcp "udp port 53" icmp arp "tcp[tcpflags] & tcp-syn != 0" "port 80 or port 443" ip6 "greater 1000" vlan "not ip")
# Runs a command, and stores its output and exit code.
run() {
	local rc=0
	"$@" >"$out/$name.out" 2>"$out/$name.err" </dev/null || rc=$?
	echo "exit $rc" >>"$out/$name.err"
}
# Writes the results for the capture $1 to the folder $2, with the program of the folder $3.
make_results() {
	local capture=$1 out=$2 program=$3/program name rule triggers=()
	mkdir -p "$out/dumps"
	for rule in "${rules[@]}"; do triggers+=(--trigger "$rule"); done
	name=record run "$program" record -r "$capture" --reproducible --ring 64MiB --ring-file "$out/ring" \
		"${triggers[@]}" --past 2s --future 1s -w "$out/dumps" --json
	name=query run "$program" query --ring-file "$out/ring" -w "$out/all.pcapng"
	name=newest run "$program" query --ring-file "$out/ring" -c 100 --newest -w "$out/newest.pcapng" tcp or udp
	name=flows run "$program" flows -r "$capture" --eve "$out/eve.json" -q
	for rule in "${rules[@]}"; do
		name="filter ${rule//[^a-z0-9]/-}" run "$program" filter -r "$capture" --count "$rule"
	done
	rm -f "$out/ring"
	find "$out" -name '*.pcapng' | while IFS= read -r file; do
		"$text" "$file" >"$file.text"
		grep '^packet ' "$file.text" >"$file.packets" || true
		rm "$file"
	done
	# Paths and packet IDs always differ.
	find "$out" -type f -exec sed -i -E "s#$out#OUT#g; s/\\\\\"after\\\\\":\\[[^]]*]//" {} +
}
failed=0
different=0
for capture in "${captures[@]}"; do
	for side in base new; do make_results "$capture" "$folder/$side/results" "$folder/$side"; done
	if ! diff -rq "$folder/base/results" "$folder/new/results" >"$folder/differences"; then
		step "$capture"
		different=$((different + 1))
		if grep -q 'packets differ$\|Only in.*\.packets' "$folder/differences"; then
			failed=1
			echo "DIFFERENT PACKETS"
		fi
		diff -r "$folder/base/results" "$folder/new/results" | cut -c 1-400 | head -n "${LINES_EACH:-20}" || true
	fi
	rm -rf "$folder/base/results" "$folder/new/results"
done
step "${#captures[@]} captures, $different with differences"
exit "$failed"
