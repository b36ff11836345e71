#!/usr/bin/env bash
# The slow checks: loom with more preemptions, longer load on the ring, and generated operations with seeds that `make test`
# does not run. LOOM_PREEMPTIONS (4), STRESS_RECORDS (5 million) and ORACLE_SEEDS (500) say how slow.

. "$(dirname "$0")/lib.sh"

scripts/loom.sh "${LOOM_PREEMPTIONS:-4}"

export STRESS_RECORDS=${STRESS_RECORDS:-5000000}
step "ring under load, $STRESS_RECORDS records"
cargo test --locked --release -q -p retroscope-ring --test stress

seeds=${ORACLE_SEEDS:-500}
step "ring against the model, $seeds more seeds"
for ((seed = 1000; seed < 1000 + seeds; seed++)); do
	# A failure prints its seed and stops here.
	ORACLE_SEED=$seed cargo test --locked --release -q -p retroscope-ring --test oracle
done
