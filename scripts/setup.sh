#!/usr/bin/env bash
# Installs what is missing on a Debian or Ubuntu host for one purpose: build, test, demo or bench.
# Looks before it acts, so a run with nothing to do takes a moment and prints nothing.
set -euo pipefail

purpose=${1:-build}
nextest_version=0.9.143
deny_version=0.20.2
fuzz_version=0.13.2

fail() {
    printf 'setup: %s\n' "$1" >&2
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

has() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }

# Rust comes first: it is the one thing that is not installed here, since a toolchain is its user's own
# choice, and nobody should wait for packages only to be told so.
require_rust() {
    local oldest=$1 program version
    local get="install Rust $oldest or newer with rustup (https://rustup.rs), open a new shell, and try again"
    for program in cargo rustc; do
        has "$program" || fail "$program is missing: $get"
        version=$("$program" --version 2>/dev/null | cut -d ' ' -f 2) || true
        [ -n "$version" ] || fail "\`$program --version\` fails, so no toolchain is chosen: $get"
        [ "$(printf '%s\n' "$oldest" "$version" | sort -V | head -n 1)" = "$oldest" ] ||
            fail "$program is of version $version, and $oldest is the oldest that will do: \`rustup update\`, or $get"
    done
}
require_rust "$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml")"

missing=()
need() { has "$1" || missing+=("$2"); }

need cc build-essential
need mmdebstrap mmdebstrap
need unshare util-linux
need newuidmap uidmap
need npm npm
if ! has python3 || ! python3 -c 'import pip' 2>/dev/null; then
    missing+=(python3 python3-pip)
fi
# Hosts that are not Debian check Debian's signatures with this.
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)

case $purpose in
build) ;;
demo | test)
    need curl curl
    need jq jq
    need unzip unzip
    [ "$purpose" = demo ] || python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    ;;
bench)
    need curl curl
    need jq jq
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    ;;
*) fail "unknown purpose '$purpose'; it is one of: build, test, demo, bench" ;;
esac

# The store is tested and measured on a real PostgreSQL. A machine that has none gets its programs, but no server
# that runs by itself.
if [ "$purpose" = test ] || [ "$purpose" = bench ]; then
    if ! has initdb && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
        missing+=(postgresql)
        as_root mkdir -p /etc/postgresql-common/createcluster.d
        printf 'create_main_cluster = false\n' |
            as_root tee /etc/postgresql-common/createcluster.d/bellglass.conf >/dev/null
    fi
fi
# The page is tested in the system's own browser.
if [ "$purpose" = test ]; then
    has chromium || has chromium-browser || has google-chrome || missing+=(chromium)
fi

if [ ${#missing[@]} -gt 0 ]; then
    has apt-get || fail "please install: ${missing[*]} (names of Debian packages)"
    printf 'setup: installing %s\n' "${missing[*]}"
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
fi

# gVisor is the sandbox's next level up. Debian 12 itself has a version that is too old, so it comes
# from backports there; that source is added only if no other gives it. Without gVisor everything
# works but jobs that ask for it, so a failure is told and is not the end.
usable_runsc='0.0~20230600'
install_runsc() {
    if has runsc && [[ $(runsc flags 2>&1) == *systrap* ]]; then return; fi
    local why='jobs with "isolation": "gvisor" will be refused on this host'
    has apt-get || {
        printf 'setup: runsc (gVisor) is missing and there is no apt; %s\n' "$why" >&2
        return
    }
    printf 'setup: installing runsc\n'
    local log version
    log=$(mktemp)
    version=$(offered_runsc)
    if [ -z "$version" ]; then
        add_backports >>"$log" 2>&1 || true
        version=$(offered_runsc)
    fi
    if [ -z "$version" ]; then
        printf 'setup: no package source of this host offers a runsc (gVisor) that is new enough; %s\n' "$why" >&2
    elif ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes \
        --no-install-recommends "runsc=$version" >>"$log" 2>&1; then
        tail -n 15 "$log" >&2
        printf 'setup: apt could not install runsc (gVisor) %s; %s\n' "$version" "$why" >&2
    fi
    rm -f "$log"
}

# The newest version that apt knows, if it is new enough.
offered_runsc() {
    local version
    version=$(apt-cache madison runsc 2>/dev/null | awk '{ print $3; exit }')
    if [ -n "$version" ] && dpkg --compare-versions "$version" ge "$usable_runsc"; then
        printf '%s' "$version"
    fi
}

# Backports lie beside the distribution on the same mirror, signed by the same key.
add_backports() {
    local codename mirror
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    mirror=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' \
        'Created-By: Packages' |
        awk -v codename="$codename" '$1 == codename && $2 == "main" { print $3; exit }')
    [ -n "$mirror" ] || return
    printf 'Types: deb\nURIs: %s\nSuites: %s-backports\nComponents: main\nSigned-By: %s\n' \
        "$mirror" "$codename" /usr/share/keyrings/debian-archive-keyring.gpg |
        as_root tee /etc/apt/sources.list.d/bellglass-backports.sources >/dev/null
    as_root apt-get update --quiet || true
}

[ "$purpose" != test ] || install_runsc

# A plain user builds and runs images with ids of its own, which new users have by default.
if [ "$(id -u)" != 0 ]; then
    user=$(id -un)
    for kind in uid gid; do
        grep -q "^$user:" "/etc/sub$kind" 2>/dev/null && continue
        printf 'setup: giving %s subordinate %ss\n' "$user" "$kind"
        first=$(awk -F: 'BEGIN { n = 100000 } $2 + $3 > n { n = $2 + $3 } END { print n }' \
            "/etc/sub$kind" 2>/dev/null || echo 100000)
        as_root usermod "--add-sub${kind}s" "$first-$((first + 65535))" "$user" ||
            fail "could not add a line for $user to /etc/sub$kind"
    done
fi

[ "$purpose" != test ] || "$(dirname "$0")/s3.sh" install

if [ "$purpose" = test ]; then
    for component in fmt clippy; do
        has "cargo-$component" && cargo "$component" --version >/dev/null 2>&1 && continue
        has rustup || fail "cargo $component is missing: install it beside your Rust"
        rustup component add "${component/fmt/rustfmt}"
    done
    install_tool() {
        has "$1" && return
        printf 'setup: building %s (once, this takes some minutes)\n' "$1"
        cargo install --quiet --locked "$1@$2" || fail "could not install $1 $2 with cargo"
    }
    install_tool cargo-nextest "$nextest_version"
    install_tool cargo-deny "$deny_version"
    install_tool cargo-fuzz "$fuzz_version"
fi
