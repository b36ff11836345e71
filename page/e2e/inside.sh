#!/usr/bin/env bash
# Runs the tests of this folder in a network namespace of its own: `scripts/page.sh test` calls this script.
#
# The tests send on rs0 or to 10.9.0.2, and recorders record on rs1.

set -euo pipefail
cd "$(dirname "$0")"

# Only the tests send on these links.
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
ip link set lo up
ip link add rs0 type veth peer name rs1
ip address add 10.9.0.1/24 dev rs0
ip link set rs0 up
ip link set rs1 up
ip neighbor add 10.9.0.2 lladdr 02:00:00:00:00:02 dev rs0 nud permanent

# One after the other: the tests share the link and two cores.
exec node --test --test-concurrency=1 "$@" ./*.test.mjs
