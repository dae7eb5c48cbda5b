#!/usr/bin/env bash
# Shows three jobs from submission to download: two with fixed steps and a task for a model. Starts a
# server, submits the examples, prints their events as they happen, checks the results, and keeps serving
# until Ctrl-C (ONCE=1: exits then). Without a key the task is played again from a recording.
set -euo pipefail
cd "$(dirname "$0")/.."

bellglass=${BELLGLASS:-target/release/bellglass}
port=${PORT:-8000}
url=http://127.0.0.1:$port
output=demo-output
export BELLGLASS_LISTEN=127.0.0.1:$port BELLGLASS_SERVER=$url
export BELLGLASS_RECORDINGS=$PWD/examples/recordings
model=${BELLGLASS_MODEL:-${ANTHROPIC_API_KEY:-${OPENAI_API_KEY:-${OPENAI_BASE_URL:-}}}}
server=

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

fail() {
    printf 'demo: %s\n' "$1" >&2
    exit 1
}

stop_server() {
    if [ -n "$server" ] && kill -TERM "$server" 2>/dev/null; then
        wait "$server" || true
    fi
    server=
}
trap stop_server EXIT
trap 'exit 130' INT TERM

start_server() {
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
        fail "port $port is taken by another program; stop it, or choose another: make demo PORT=8001"
    fi
    "$bellglass" serve >"$output/server.log" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        curl --silent --fail --output /dev/null "$url/readyz" && return
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$output/server.log" >&2
    fail "the server did not become ready; its log is $output/server.log"
}

# Runs one example and checks that its ZIP holds the files named after it; what the job came to is left in
# $view. Of steps none may fail; a model may well try what fails.
run_example() {
    local name=$1 body=examples/$1.json job listing archive=$output/$1.zip
    local fine='.status == "completed" and ((.spec.steps == null) or (.steps | all(.status == "succeeded")))'
    shift
    say "Job $name (examples/$name.json)"
    if jq --exit-status 'has("task")' "$body" >/dev/null && [ -z "$model" ]; then
        echo "No model is configured, so its recording is played again: the model's words come from"
        echo "examples/recordings/$name.jsonl, and all that it does is done in a real sandbox."
        jq --arg model "replay/$name" '.model = $model' "$body" >"$output/$name.json"
        body=$output/$name.json
    fi
    job=$("$bellglass" submit "$body" --json | jq --raw-output .job_id)
    # How the job ended is checked below, with a message of its own.
    "$bellglass" logs --follow "$job" || true
    view=$(curl --silent --fail "$url/jobs/$job")
    jq --exit-status "$fine" <<<"$view" >/dev/null || {
        jq '{status, error, failed: [.steps[] | select(.status != "succeeded")]}' <<<"$view" >&2
        fail "job $name did not complete as it should"
    }
    "$bellglass" download "$job" --output "$archive"
    unzip -tqq "$archive" || fail "$archive is damaged"
    # Listed once: a reader that leaves a pipe early would look like a failed listing.
    listing=$(unzip -Z1 "$archive")
    for file in "$@"; do
        grep --quiet --line-regexp --fixed-strings -- "$file" <<<"$listing" ||
            fail "$archive lacks $file"
    done
    printf 'Downloaded %s with %s files.\n' "$archive" "$(grep -cv '/$' <<<"$listing")"
    summary+=("$name: $url/watch/$job" "  events    $url/jobs/$job/events"
        "  result    $url/jobs/$job/output.zip  ($archive)")
}

# Fails unless a file in an example's ZIP is, byte for byte, what standard input says.
expect_file() {
    local archive=$output/$1.zip file=$2
    cmp --quiet - <(unzip -p "$archive" "$file") || {
        unzip -p "$archive" "$file" | head -n 20 >&2
        fail "$file in $archive is not what examples/$1.json makes; above is what it holds"
    }
}

# The content that a step of an example, or the example itself, gives to a file.
given() {
    jq --join-output --arg path "$2" '[.files[]?, (.steps[]? | select(.tool == "write_file"))]
        | map(select(.path == $path).content)[0]' "examples/$1.json"
}

# Fails unless the step of the last example that ran this command, or began with it, printed a line.
expect_line() {
    local command=$1 line=$2 said
    said=$(jq --raw-output --arg command "$command" \
        '.steps[] | select(.arguments.command // "" | startswith($command)).stdout' <<<"$view")
    grep --quiet --line-regexp --extended-regexp -- "$line" <<<"$said" || {
        printf '%s\n' "$said" >&2
        fail "\`$command\` did not print \`$line\`; above is what it printed"
    }
}

# Whatever a model did, the example's own tests must pass on what it left. That is code from a sandbox, so it
# is run in another one.
expect_repaired() {
    local check=$output/check.json repaired
    repaired=$(unzip -p "$output/fix-failing-test.zip" basket.py)
    jq --null-input --arg basket "$repaired" --arg tests "$(given fix-failing-test test_basket.py)" \
        '{on_error: "stop", steps: [{tool: "write_file", path: "basket.py", content: $basket},
            {tool: "write_file", path: "test_basket.py", content: $tests},
            {tool: "shell", command: "python3 -m pytest -q"}]}' >"$check"
    "$bellglass" run "$check" --output "$output/check.zip" >"$output/check.log" 2>&1 || {
        cat "$output/check.log" >&2
        fail 'the basket.py that fix-failing-test left does not pass the tests that it was given'
    }
    rm -f "$check" "$output/check.zip" "$output/check.log"
}

[ -x "$bellglass" ] || fail "$bellglass is not built; run: make build"
mkdir -p "$output"
echo '*' >"$output/.gitignore"
rm -f "$output"/*.zip
summary=()
start_server
run_example hello hello.txt squares.json sum.txt greet.sh notes/plan.md
expect_file hello sum.txt <<<'The sum is 55.'
expect_file hello notes/plan.md < <(given hello notes/plan.md | sed 's/\[ \] say/[x] say/')
expect_file hello greet.sh < <(given hello notes/greet.sh)
expect_line './greet.sh' 'Hello, newcomer!'
run_example todo-app todo-app/README.md todo-app/package.json todo-app/src/server.ts \
    todo-app/public/index.html todo-app/test/todos.test.ts
expect_file todo-app todo-app/src/server.ts < <(given todo-app todo-app/src/server.ts)
expect_line 'npm test' '.* pass 5'
expect_line 'npm test' '.* fail 0'
expect_line 'set -e; node src/main.ts' 'The app answers\.'
run_example fix-failing-test basket.py test_basket.py context/current.json
expect_repaired

say "All jobs completed. To look at:"
printf '%s\n' "${summary[@]}" "The page:   $url/" "API docs:   $url/docs"

if [ "${ONCE:-0}" = 1 ]; then
    exit 0
fi
say "Serving at $url until Ctrl-C."
trap 'exit 0' INT TERM
wait "$server"
