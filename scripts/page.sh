#!/usr/bin/env bash
# The web page: `build` makes it (web/dist, which cargo puts into the binary), `test` also checks and
# tests it in a browser, `pictures` takes the README's pictures of it anew. Looks before it acts: when
# nothing that the page is made of has changed, `build` takes a moment and needs no Node.
set -euo pipefail
cd "$(dirname "$0")/../web"

purpose=${1:-build}
oldest_node=20.19.0
# What is taken where the system's Node is older, as Debian 12's is: those that the sandbox image has too.
own_node=24.21.0
own_npm=11.21.1
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

# Any npm gets a Node that is new enough: both are npm packages, and carry programs that need no set-up.
choose_node() {
    node_will_do && return
    command -v npm >/dev/null || return
    local architecture place
    place=$(cd .. && pwd)/target/tools/node-$own_node
    case $(uname -m) in
    x86_64) architecture=x64 ;;
    aarch64) architecture=arm64 ;;
    *) return 1 ;;
    esac
    if [ ! -x "$place/bin/node" ]; then
        printf 'page: installing Node %s into target/, since the page needs %s or newer\n' "$own_node" "$oldest_node"
        rm -rf "$place.new"
        mkdir -p "$place.new" || fail "cannot make $place.new"
        quietly npm install --global --ignore-scripts --no-audit --no-fund --no-update-notifier \
            --prefix "$place.new" "node-linux-$architecture@$own_node" "npm@$own_npm"
        # Whole or not there.
        mv "$place.new" "$place" || fail "cannot make $place"
    fi
    PATH=$place/bin:$PATH
    # Debian's Node trusts what the system trusts; others know only their own list until they are told.
    local certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
    [ ! -e "$certificates" ] || export NODE_EXTRA_CA_CERTS=${NODE_EXTRA_CA_CERTS:-$certificates}
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
    if ! choose_node; then
        printf 'page: left out, since there is no npm, or none for this machine, to build it with; all else works\n' >&2
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
    choose_node || fail "this needs npm, on a machine that Node is made for"
    build
    install_packages
    install_viewer
    npm run --silent check
    npm test --silent
    ;;
pictures)
    choose_node || fail "this needs npm, on a machine that Node is made for"
    build
    install_packages
    npm run --silent pictures
    ;;
*) fail "unknown purpose '$purpose'; it is one of: build, test, pictures" ;;
esac
