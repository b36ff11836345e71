#!/usr/bin/env bash
# The slow checks: loom with more preemptions, and generated operations with seeds that `make test` does not run.
# LOOM_PREEMPTIONS (3) and ORACLE_SEEDS (200) say how slow.

. "$(dirname "$0")/lib.sh"

seeds=${ORACLE_SEEDS:-200}
step "ring against the model, $seeds more seeds"
# A failure prints its seed and stops here.
for ((seed = 1000; seed < 1000 + seeds; seed++)); do
	ORACLE_SEED=$seed cargo test --locked --release -q -p retroscope-ring --test oracle
done

scripts/loom.sh "${LOOM_PREEMPTIONS:-3}"
