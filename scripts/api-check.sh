#!/usr/bin/env bash
# Sends requests that the API's OpenAPI document allows or forbids to a live recorder, with all
# checks of schemathesis. Each operation of the document must succeed (2xx) at least once, by
# schemathesis or curl. EXAMPLES (50) is the number of generated requests for each operation, SEED
# (1) their random seed. `api-check.sh PROGRAM` tests PROGRAM instead of building one.
#
# Prints SKIP without schemathesis (`pip install schemathesis`), curl or python3. Only curl calls
# two operations: one ends the recording, and the response of the other never ends. Curl also calls
# operations that need the `Location` of a response. The statuses 409, 412, 416 and 422 count as
# valid responses to a well-formed request: no schema says which text is a filter, or how long a
# file is.

. "$(dirname "$0")/lib.sh"

step "api-check"
for tool in schemathesis curl python3; do
	command -v "$tool" >/dev/null || {
		echo "SKIP: $tool is not installed"
		exit 0
	}
done
program=${1:-$(PROFILE=dev built -p retroscope-cli --bin retroscope)}
folder=$(mktemp -d)
recorder=
cleanup() {
	[ -z "$recorder" ] || kill "$recorder" 2>/dev/null || true
	wait
	rm -rf "$folder"
}
trap cleanup EXIT

token=$("$program" token --tokens "$folder/tokens" --name check --role admin)
# The API can reload this file. Dumps end at once, because an open dump cannot be deleted.
printf 'past = "100ms"\nfuture = "0s"\n' >"$folder/retroscope.toml"
"$program" record -i generate:flows=20,rate=5kpps --ring 64MiB --set max-dumps=4096 --set dumps-per-minute=0 --trigger 'tcp port 9' -w "$folder/dumps" \
	--config "$folder/retroscope.toml" --api 127.0.0.1:0 --tokens "$folder/tokens" 2>"$folder/words" &
recorder=$!
until grep -q 'HTTP at' "$folder/words"; do
	kill -0 "$recorder" || { cat "$folder/words"; exit 1; }
done
url=$(sed -n 's/.*HTTP at //p' "$folder/words" | head -1)
ask() { curl -sS -f -H "Authorization: Bearer $token" "$@"; }
# Sends a request and notes that the operation, as named in the document, succeeded.
reach() {
	ask -X "${1% *}" "${@:2}"
	echo "$1" >>"$folder/reached"
}

cat >"$folder/schemathesis.toml" <<END
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 403, 404, 409, 412, 416, 422, 503]
# No links from Location headers: schemathesis takes /v1/dumps/N for a rule.
[phases.stateful.inference]
algorithms = ["dependency-analysis"]
# A following query never ends.
[[operations]]
include-path = "/v1/query"
parameters = { follow = "false" }
END
# schemathesis writes its findings to the current directory.
cd "$folder"
schemathesis --config-file "$folder/schemathesis.toml" run "$url/v1/openapi.json" --header "Authorization: Bearer $token" --checks all \
	--exclude-path /v1/stop --exclude-path /v1/events --max-examples "${EXAMPLES:-50}" --seed "${SEED:-1}" --request-timeout 20 --workers 2 \
	--report ndjson --report-ndjson-path "$folder/report" --output-sanitize true
place=$(ask -D - -o "$folder/answer" "$url/v1/query?limit_packets=1" | tr -d '\r' | sed -n 's/^location: //p')
reach 'GET /v1/queries/{id}' "$url$place" | grep -q '"state":"done"'
reach 'DELETE /v1/queries/{id}' "$url$place"
as_json=(-H 'Content-Type: application/json')
ask -X PUT "${as_json[@]}" -d '{"alert_dump":"udp"}' "$url/v1/rules/alerts"
fired='{"version":"4","alerts":[{"status":"firing","labels":{},"startsAt":"'$(date -u +%FT%TZ)'"}]}'
reach 'POST /v1/alertmanager' "${as_json[@]}" -d "$fired" "$url/v1/alertmanager?rule=alerts" | grep -q '"outcome":"dump"'
ask "$url/v1/events?from=0" --max-time 3 >"$folder/events" || [ $? -eq 28 ]
grep -q '^event: ' "$folder/events"
echo 'GET /v1/events' >>"$folder/reached"
reach 'GET /v1/openapi.json' "$url/v1/openapi.json" >"$folder/openapi.json"
ask "$url/v1/status" | grep -q '"missed":0'
reach 'POST /v1/stop' "$url/v1/stop"
wait "$recorder"
recorder=
python3 - "$folder" <<'END'
import json, sys

folder = sys.argv[1]
paths = json.load(open(f"{folder}/openapi.json"))["paths"]
left = {f"{method.upper()} {path}" for path in paths for method in paths[path]}
left -= set(open(f"{folder}/reached").read().splitlines())
for line in open(f"{folder}/report"):
    asked = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
    for id, exchange in asked.get("interactions", {}).items():
        if exchange["response"] and exchange["response"]["status_code"] // 100 == 2:
            case = asked["cases"][id]["value"]
            left.discard(f"{case['method']} {case['path']}")
if left:
    sys.exit(f"never succeeded: {', '.join(sorted(left))}")
END
echo "api-check: ok"
