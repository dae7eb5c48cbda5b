#!/usr/bin/env bash
# Holds the real server against its own OpenAPI document: schemathesis (PyPI) makes up requests, right and
# wrong, and looks for answers that the document does not promise, and for failures of the server. The
# argument says how many requests are made up for each operation beside those that try every bound once.
set -euo pipefail
cd "$(dirname "$0")/.."

examples=${1:-200}
version=4.32.5
binary=$(realpath "${BELLGLASS:-target/debug/bellglass}")
token=$(head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n')

venv=$PWD/target/schemathesis-venv
if [ "$(cat "$venv/complete" 2>/dev/null)" != "$version" ]; then
    printf 'api: installing schemathesis\n'
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version"
    printf '%s\n' "$version" >"$venv/complete"
fi

folder=$(mktemp -d)
server=
url=

call() {
    curl --silent --fail --header "Authorization: Bearer $token" --header 'Content-Type: application/json' "$@"
}

unfinished() {
    for status in scheduled running paused; do
        call "$url/jobs?limit=200&status=$status" | jq --raw-output '.jobs[].job_id'
    done
}

# A sandbox is no part of its server: jobs that still run are cancelled, so that none is left.
finish() {
    if [ -n "$url" ]; then
        while jobs=$(unfinished) && [ -n "$jobs" ]; do
            for job in $jobs; do
                call --output /dev/null --request POST "$url/jobs/$job/cancel" || true
            done
            sleep 0.2
        done
    fi
    if [ -n "$server" ] && kill "$server" 2>/dev/null; then
        wait "$server" || true
    fi
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

: >"$folder/bellglass.toml"
BELLGLASS_TOKEN=$token "$binary" --config "$folder/bellglass.toml" --json serve \
    --listen 127.0.0.1:0 --data "$folder/data" >"$folder/announced" 2>"$folder/server.log" &
server=$!
until [ -s "$folder/announced" ]; do
    kill -0 "$server" 2>/dev/null || { tail -n 20 "$folder/server.log" >&2; exit 1; }
    sleep 0.1
done
url=$(jq --raw-output .listening "$folder/announced")

# Two jobs that the made-up requests can be about: one that has ended, and one that lasts.
schedule() { call --data "$1" "$url/schedule" | jq --raw-output .job_id; }
ended=$(schedule '{"steps": [{"tool": "shell", "command": "mkdir d; echo x | tee a.txt d/b; seq 1 200000"}]}')
lasting=$(schedule '{"session": {}}')
call --output /dev/null "$url/jobs/$ended/events?format=jsonl&follow=1"

# One has no answer that ends (changes, which goes on for ever); the other has one only for a job that has.
try() {
    local jobs=$1
    shift
    printf '[parameters]\n"path.id" = %s\n"path.n" = [1, 2]\n"path.k" = [1, 2]\n"path.path" = ["a.txt", "d/b", "d", "none"]\n' \
        "$jobs" >"$folder/schemathesis.toml"
    (cd "$folder" && "$venv/bin/schemathesis" --config-file schemathesis.toml run "$url/openapi.json" \
        --header "Authorization: Bearer $token" --phases examples,coverage,fuzzing --max-examples "$examples" \
        --checks all --exclude-checks ignored_auth,positive_data_acceptance --continue-on-failure \
        --request-timeout 30 --warnings off --no-color "$@" >"$folder/said" 2>&1) || {
        cat "$folder/said" >&2
        tail -n 20 "$folder/server.log" >&2
        exit 1
    }
    grep -E 'generated' "$folder/said" || true
}
try "[\"$ended\", \"$lasting\"]" --exclude-path /changes --exclude-path '/jobs/{id}/events' \
    --exclude-path '/jobs/{id}/cancel'
case $(call "$url/status/$lasting" | jq --raw-output .status) in
completed | failed | cancelled)
    printf 'api: the job that lasts has ended, so what its sandbox answers was not tried\n' >&2
    exit 1
    ;;
esac
try "\"$ended\"" --include-path '/jobs/{id}/events'
# Last, and with a job of its own, since nothing can be asked of one that was cancelled.
try "[\"$ended\", \"$(schedule '{"session": {}}')\"]" --include-path '/jobs/{id}/cancel'
