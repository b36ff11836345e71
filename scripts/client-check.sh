#!/usr/bin/env bash
# Generates a Python client from the API's OpenAPI document with openapi-python-client. The client
# lists rules, adds a rule, starts a dump and downloads the dump's file from a live recorder.
# `client-check.sh PROGRAM` tests PROGRAM instead of building one.
#
# Prints SKIP without openapi-python-client (`pip install openapi-python-client`).

. "$(dirname "$0")/lib.sh"

step "client-check"
generator=$(command -v openapi-python-client) || {
	echo "SKIP: openapi-python-client is not installed"
	exit 0
}
# The Python that runs the generator also has the libraries that the client needs.
python=$(sed -n '1s/^#!//p' "$generator")
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
"$program" record -i generate:flows=20,rate=5kpps --ring 64MiB --trigger 'tcp port 9' -w "$folder/dumps" \
	--api 127.0.0.1:0 --tokens "$folder/tokens" 2>"$folder/words" &
recorder=$!
until grep -q 'HTTP at' "$folder/words"; do
	kill -0 "$recorder" || { cat "$folder/words"; exit 1; }
done
url=$(sed -n 's/.*HTTP at //p' "$folder/words" | head -1)
printf 'content_type_overrides: { application/x-pcapng: application/octet-stream }\n' >"$folder/config.yml"
"$generator" generate --path crates/api/openapi.json --meta none --config "$folder/config.yml" --output-path "$folder/retroscope_client" >"$folder/generated" 2>&1
cd "$folder"
"$python" - "$url" "$token" <<'END'
import sys

from retroscope_client import AuthenticatedClient
from retroscope_client.api.dumps import get_dump_file, trigger
from retroscope_client.api.rules import list_rules, put_rule
from retroscope_client.models import Rule, TriggerBody

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2], raise_on_unexpected_status=True)
put_rule.sync_detailed("udp", client=client, body=Rule(expression="udp port 9", past="1s"))
names = {rule.name for rule in list_rules.sync(client=client).rules}
assert names == {"1", "udp"}, names
dump = trigger.sync(client=client, body=TriggerBody(past="1s", future="0s")).dump
file = get_dump_file.sync_detailed(str(dump), client=client).content
assert file[:4] == b"\x0a\x0d\x0d\x0a" and len(file) > 1000, len(file)
END
echo "client-check: ok"
