#!/usr/bin/env bash
# Runs the slow checks. Ring: loom with more preemptions, generated operations against the model,
# threads with random roles, load, and the sanitizers. Filters: machine code, interpreter and
# libpcap against each other. Also fuzzing, the API against its document, and a generated client.
# docs/dev/verification.md lists the faults that each check finds. All checks run, even after a
# failure. The end of the output lists the checks, their durations, and skipped parts.
#
# STRESS_SECONDS (600), SANITIZE_SECONDS (90), STRESS_RECORDS (5 million), ORACLE_SEEDS (500) and
# LOOM_PREEMPTIONS (default: per model) set the effort. FILTER_SECONDS (60) is the time for each
# test of filters, FUZZ_SECONDS (60) for each fuzz target. STRESS_SEED (the time of day) is the
# first seed of the random roles.

. "$(dirname "$0")/lib.sh"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
ran=()
skipped=()
failed=0

# Runs one judge: `judge NAME COMMAND…`.
judge() {
	local name=$1 start=$SECONDS result=ok
	shift
	step "$name"
	"$@" 2>&1 | tee "$log" || result=FAILED
	[ "$result" = ok ] || failed=1
	if grep -q '^SKIP' "$log"; then
		skipped+=("$(grep '^SKIP' "$log" | sort -u)")
		result="skipped, or in part"
	fi
	ran+=("$(printf '%5d s  %-7s %s' $((SECONDS - start)) "$result" "$name")")
}

seconds=${STRESS_SECONDS:-600}
seed=${STRESS_SEED:-$(date +%s)}
export STRESS_RECORDS=${STRESS_RECORDS:-5000000}
ring=(cargo test --locked --release -q -p retroscope-ring)

judge "loom" scripts/loom.sh "${LOOM_PREEMPTIONS:-deep}"
ORACLE_SEED=1000 ORACLE_SEEDS=${ORACLE_SEEDS:-500} \
	judge "the ring against the model, ${ORACLE_SEEDS:-500} more seeds" "${ring[@]}" --test ring oracle::
judge "the ring under load, $STRESS_RECORDS records" "${ring[@]}" --test ring stress::
STRESS_SECONDS=$seconds STRESS_SEED=$seed \
	judge "random roles, $seconds s, from seed $seed" "${ring[@]}" --test ring roles:: -- --show-output
# --nocapture: if machine code reads out of bounds, only the printed seeds remain.
FILTER_SECONDS=${FILTER_SECONDS:-60} \
	judge "filters: implementations against each other, ${FILTER_SECONDS:-60} s a test" \
	cargo test --locked --release -q -p retroscope-filter --lib differential -- --nocapture
judge "fuzzing, ${FUZZ_SECONDS:-60} s a target" scripts/fuzz.sh "${FUZZ_SECONDS:-60}"
judge "the API against its document" scripts/api-check.sh
for sanitizer in thread address; do
	STRESS_SECONDS=${SANITIZE_SECONDS:-90} STRESS_SEED=$seed STRESS_RECORDS=50000 \
		judge "$sanitizer sanitizer" scripts/sanitize.sh "$sanitizer"
done
judge "a generated client of the API" scripts/client-check.sh

step "what ran"
printf '%s\n' "${ran[@]}"
if [ "${#skipped[@]}" -gt 0 ]; then
	step "what was skipped"
	printf '%s\n' "${skipped[@]}"
fi
exit "$failed"
