#!/usr/bin/env bash
# Sets up what the benchmarks need, runs them, and brings docs/SPECIFICATION.md up to date.
#
#   bench/run.sh                    all benchmarks, half an hour and more; wants a release build and a quiet machine
#   bench/run.sh schedule           only one
#   bench/run.sh --smoke            a few seconds each: does everything work? Keeps no figures, judges no times
#
# BELLGLASS_BINARY names the program to measure; by default it is target/release/bellglass, and for a
# smoke run whichever build is newest.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'bench: %s\n' "$1" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this needs root, and there is no sudo; as root, run: $*"
    fi
}

# What looks at the page.
has_browser() {
    [ -n "${BELLGLASS_CHROMIUM:-}" ] || command -v chromium >/dev/null ||
        command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
}

install_missing() {
    local missing=()
    command -v wrk >/dev/null || missing+=(wrk)
    command -v bwrap >/dev/null || missing+=(bubblewrap)
    command -v rsync >/dev/null || missing+=(rsync)
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    case "${names:- live} " in
    *" live "*) has_browser || missing+=(chromium) ;;
    esac
    [ ${#missing[@]} -gt 0 ] || return 0
    printf 'bench: installing %s\n' "${missing[*]}"
    local log
    log=$(mktemp)
    # A source of somebody else's that does not answer must not keep Debian's from being used.
    as_root apt-get update --quiet >"$log" 2>&1 || true
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes \
        --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
        tail -n 15 "$log" >&2
        rm -f "$log"
        fail "apt could not install: ${missing[*]}"
    fi
    rm -f "$log"
}

# What the benchmarks of sandboxes and of jobs are measured beside. What cannot be had is named in the
# table, so nothing here is fatal.
install_runtimes() {
    local program missing=()
    for program in crun runc podman dockerd; do
        command -v "$program" >/dev/null || missing+=("${program/dockerd/docker.io}")
    done
    local log
    log=$(mktemp)
    if [ ${#missing[@]} -gt 0 ]; then
        printf 'bench: installing %s\n' "${missing[*]}"
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes \
            --no-install-recommends "${missing[@]}" >>"$log" 2>&1 || tail -n 3 "$log" >&2
    fi
    if ! command -v runsc >/dev/null; then
        printf 'bench: installing runsc\n'
        # Newer ones work without tracing; they are in the backports where those are configured.
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes \
            --target-release "$(. /etc/os-release && printf %s "${VERSION_CODENAME:-}")-backports" runsc >>"$log" 2>&1 ||
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes runsc >>"$log" 2>&1 ||
            tail -n 3 "$log" >&2
    fi
    rm -f "$log"
}

# What the benchmark of tools is measured beside; nothing here is fatal either.
install_tools() {
    local pair missing=()
    for pair in Xtigervnc:tigervnc-standalone-server Xvfb:xvfb x11vnc:x11vnc openbox:openbox xterm:xterm \
        xdotool:xdotool scrot:scrot import:imagemagick rg:ripgrep crun:crun runc:runc; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    printf 'bench: installing %s\n' "${missing[*]}"
    local log
    log=$(mktemp)
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes \
        --no-install-recommends "${missing[@]}" >>"$log" 2>&1 || tail -n 3 "$log" >&2
    rm -f "$log"
}

# A driver that uses our own crates; built like the program that is measured. Prints where it is.
#   build_driver PACKAGE EXAMPLE
build_driver() {
    local folder=release choice=(--release --package "$1")
    case $binary in
    # As the tests are built: another choice of packages would compile what all depend on anew.
    */debug/*) folder=debug choice=(--workspace) ;;
    esac
    cargo build --quiet --locked "${choice[@]}" --example "$2" ||
        fail "the driver $2 could not be built"
    realpath "${CARGO_TARGET_DIR:-target}/$folder/examples/$2"
}

# The peers' Python packages, in an environment of their own below target/.
make_environment() {
    venv=target/bench-venv
    if [ ! -e "$venv/complete" ] || [ bench/requirements.txt -nt "$venv/complete" ]; then
        printf 'bench: installing the Python packages of the peers\n'
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            --requirement bench/requirements.txt || fail "pip could not install bench/requirements.txt"
        touch "$venv/complete"
    fi
}

choose_binary() {
    binary=${BELLGLASS_BINARY:-target/release/bellglass}
    if [ -z "${BELLGLASS_BINARY:-}" ] && [ "$smoke" = yes ]; then
        binary=
        for candidate in target/release/bellglass target/debug/bellglass; do
            if [ -x "$candidate" ] && { [ -z "$binary" ] || [ "$candidate" -nt "$binary" ]; }; then
                binary=$candidate
            fi
        done
    fi
    [ -x "$binary" ] || fail "there is no ${binary:-build of bellglass}; run 'make build' first"
}

smoke=no
names=
for argument in "$@"; do
    case $argument in
    --smoke) smoke=yes ;;
    *) names+=" $argument" ;;
    esac
done

install_missing
make_environment
choose_binary
case "${names:- sandbox} " in
*" sandbox "* | *" job "*) [ "$smoke" = yes ] || install_runtimes ;;
esac
case "${names:- sandbox} " in
*" sandbox "*)
    BENCH_SANDBOX_DRIVER=$(build_driver bellglass-sandbox sandbox_bench)
    export BENCH_SANDBOX_DRIVER
    ;;
esac
case "${names:- tools} " in
*" tools "*)
    [ "$smoke" = yes ] || install_tools
    BENCH_TOOLS_DRIVER=$(build_driver bellglass-sandbox tools_bench)
    export BENCH_TOOLS_DRIVER
    ;;
esac
case "${names:- context} " in
*" context "*)
    BENCH_CONTEXT_DRIVER=$(build_driver bellglass-agent context_bench)
    export BENCH_CONTEXT_DRIVER
    ;;
esac
case "${names:- store} " in
*" store "*)
    BENCH_STORE_DRIVER=$(build_driver bellglass-store store_bench)
    export BENCH_STORE_DRIVER
    ;;
esac
exec "$venv/bin/python" -B bench/run.py --binary "$(realpath "$binary")" --scratch target/bench "$@"
