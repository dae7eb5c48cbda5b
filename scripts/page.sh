#!/usr/bin/env bash
# The web page: `build` makes it (web/dist, which cargo puts into the binary), `test` also checks and
# tests it in a browser, `pictures` takes the README's pictures of it anew. Looks before it acts: when
# nothing that the page is made of has changed, `build` takes a moment and needs no Node.
set -euo pipefail
cd "$(dirname "$0")/../web"

purpose=${1:-build}
oldest_node=20.19.0
made=dist/made-of

fail() {
    printf 'page: %s\n' "$1" >&2
    exit 1
}

inputs() {
    find src ./*.html ./*.ts ./*.js ./*.json ../examples/*.json ../crates/server/openapi.json \
        -type f ! -name schema.d.ts -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

node_will_do() {
    command -v node >/dev/null && command -v npm >/dev/null &&
        [ "$(printf '%s\n' "$oldest_node" "$(node --version | tr -d v)" | sort -V | head -n 1)" = "$oldest_node" ]
}

# npm says much about other things; only a failure of ours is worth a line.
quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        rm -f "$log"
        fail "this failed: $*"
    fi
    rm -f "$log"
}

install_packages() {
    local lock
    lock=$(sha256sum package.json package-lock.json)
    [ "$(cat node_modules/.made-of 2>/dev/null)" != "$lock" ] || return 0
    printf 'page: installing its packages\n'
    quietly npm ci
    printf '%s\n' "$lock" >node_modules/.made-of
}

build() {
    local now
    now=$(inputs)
    [ -e dist/page/index.html ] && [ "$(cat "$made" 2>/dev/null)" = "$now" ] && return 0
    if ! node_will_do; then
        [ "$purpose" = build ] || fail "this needs Node $oldest_node or newer, with npm"
        printf 'page: left out, since it needs Node %s or newer to be built; all else works\n' "$oldest_node" >&2
        return 0
    fi
    install_packages
    quietly npm run --silent build
    printf '%s\n' "$now" >"$made"
}

# A VNC viewer that is not ours, to try the desktops' own ports with.
install_viewer() {
    local venv=dist/viewer
    if [ ! -e "$venv/complete" ] || [ tests/requirements.txt -nt "$venv/complete" ]; then
        printf 'page: installing a VNC viewer for its tests\n'
        rm -rf "$venv"
        quietly python3 -m venv "$venv"
        quietly "$venv/bin/python" -m pip install --disable-pip-version-check --requirement tests/requirements.txt
        touch "$venv/complete"
    fi
}

case $purpose in
build) build ;;
test)
    build
    install_packages
    install_viewer
    npm run --silent check
    npm test --silent
    ;;
pictures)
    build
    install_packages
    npm run --silent pictures
    ;;
*) fail "unknown purpose '$purpose'; it is one of: build, test, pictures" ;;
esac
