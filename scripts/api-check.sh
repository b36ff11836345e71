#!/usr/bin/env bash
# Asks a live recorder whatever its OpenAPI document allows and forbids: schemathesis with all its checks.
#
# Says SKIP where schemathesis is missing (`pip install schemathesis`). Two operations are asked by curl: one ends the recording, and the answer of the other
# has no end. 422, 409 and 416 stand beside the answers that schemathesis takes for a request of the document's form: no schema says which text is a filter, or how long a
# file is. What needs an answer's `Location` is asked by curl too.

. "$(dirname "$0")/lib.sh"

step "api-check"
if ! command -v schemathesis >/dev/null; then
	echo "SKIP: schemathesis is not installed: pip install schemathesis"
	exit 0
fi
program=${1:-${CARGO_TARGET_DIR:-target}/debug/retroscope}
folder=$(mktemp -d)
recorder=
cleanup() {
	[ -z "$recorder" ] || kill "$recorder" 2>/dev/null || true
	wait
	rm -rf "$folder"
}
trap cleanup EXIT

token=$("$program" token --tokens "$folder/tokens" --name check --role admin)
"$program" record -i generate:flows=20,rate=5kpps --ring 64MiB --max-dumps 4096 --dumps-per-minute 0 --trigger 'tcp port 9' -w "$folder/dumps" \
	--api 127.0.0.1:0 --tokens "$folder/tokens" 2>"$folder/words" &
recorder=$!
until grep -q 'HTTP at' "$folder/words"; do
	kill -0 "$recorder" || { cat "$folder/words"; exit 1; }
done
url=$(sed -n 's/.*HTTP at //p' "$folder/words" | head -1)
ask() { curl -sS -f -H "Authorization: Bearer $token" "$@"; }

cat >"$folder/schemathesis.toml" <<END
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 403, 404, 409, 416, 422, 503]
# Links by Location headers are guessed wrong: /v1/dumps/N is taken for a rule.
[phases.stateful.inference]
algorithms = ["dependency-analysis"]
# One that follows has no end.
[[operations]]
include-path = "/v1/query"
parameters = { follow = "false" }
END
# It keeps what it found in the directory where it is started.
cd "$folder"
schemathesis --config-file "$folder/schemathesis.toml" run "$url/v1/openapi.json" --header "Authorization: Bearer $token" --checks all \
	--exclude-path /v1/stop --exclude-path /v1/events --max-examples "${EXAMPLES:-50}" --seed 1 --request-timeout 20 --workers 2 \
	--report ndjson --report-ndjson-path "$folder/report" --output-sanitize true
place=$(ask -D - -o "$folder/answer" "$url/v1/query?limit_packets=1" | tr -d '\r' | sed -n 's/^location: //p')
ask "$url$place" | grep -q '"state":"done"'
ask -X DELETE "$url$place"
ask "$url/v1/events?from=0" --max-time 3 >"$folder/events" || [ $? -eq 28 ]
grep -q '^event: ' "$folder/events"
ask "$url/v1/status" | grep -q '"lapped":0'
ask -X POST "$url/v1/stop"
wait "$recorder"
recorder=
echo "api-check: ok"
