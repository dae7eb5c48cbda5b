#!/usr/bin/env bash
# Starts and stops PostgreSQL servers for tests, each in a folder of its own and on a socket there.
#
#   postgres.sh start FOLDER [SETTING=VALUE…]   makes FOLDER if needed; prints the server's address
#   postgres.sh stop FOLDER [fast|immediate]    `immediate` is a crash
#   postgres.sh for-tests                       one for a whole run of nextest, gone with it
#
# PostgreSQL refuses to run as root; then it runs as the user of Debian's package.
set -euo pipefail

fail() {
    printf 'postgres: %s\n' "$1" >&2
    exit 1
}

programs=$(dirname "$(find /usr/lib/postgresql/*/bin/initdb /usr/pgsql*/bin/initdb 2>/dev/null | sort -V | tail -n 1)")
[ -x "$programs/initdb" ] || programs=$(dirname "$(command -v initdb || true)")
[ -x "$programs/initdb" ] || fail 'PostgreSQL is missing; `scripts/setup.sh test` installs it'

as_owner() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --init-groups env -C / "$@"
    else
        "$@"
    fi
}

start() {
    local folder=$1 setting
    shift
    # Sockets have short names only.
    [ "${#folder}" -le 80 ] || fail "the folder's name is too long for a socket: $folder"
    if [ ! -e "$folder/data/PG_VERSION" ]; then
        mkdir -p "$folder"
        [ "$(id -u)" != 0 ] || chown postgres: "$folder"
        chmod 700 "$folder"
        head -c 18 /dev/urandom | base64 | tr '+/' 'ab' >"$folder/password"
        [ "$(id -u)" != 0 ] || chown postgres: "$folder/password"
        as_owner "$programs/initdb" --pgdata="$folder/data" --username=bellglass --encoding=UTF8 \
            --locale=C.UTF-8 --auth=scram-sha-256 --pwfile="$folder/password" --no-instructions \
            >"$folder/initdb.log" 2>&1 || fail "initdb failed: $(tail -n 3 "$folder/initdb.log")"
        {
            printf "listen_addresses = ''\nunix_socket_directories = '%s'\n" "$folder"
            printf "max_connections = 300\n"
            for setting in "$@"; do
                printf "%s = '%s'\n" "${setting%%=*}" "${setting#*=}"
            done
        } >>"$folder/data/postgresql.conf"
    fi
    as_owner "$programs/pg_ctl" start --wait --silent --pgdata="$folder/data" \
        --log="$folder/server.log" </dev/null >/dev/null ||
        fail "PostgreSQL did not start: $(tail -n 3 "$folder/server.log")"
    printf 'postgres://bellglass:%s@%s/postgres\n' "$(cat "$folder/password")" "${folder//\//%2F}"
}

stop() {
    as_owner "$programs/pg_ctl" stop --wait --silent --pgdata="$1/data" --mode="${2:-fast}" >/dev/null
}

case ${1:-} in
start)
    shift
    start "$@"
    ;;
stop) stop "$2" "${3:-fast}" ;;
for-tests)
    folder=$(mktemp -d "${TMPDIR:-/tmp}/bellglass-postgres.XXXXXX")
    # What survives a crash of the machine is not what these tests ask.
    address=$(start "$folder" fsync=off synchronous_commit=on)
    printf 'BELLGLASS_TEST_POSTGRES=%s\n' "$address" >>"${NEXTEST_ENV:-/dev/stdout}"
    # Whoever started this is the run; when it is over, so is the server.
    run=$PPID
    (
        trap '' HUP INT
        while kill -0 "$run" 2>/dev/null; do sleep 1; done
        stop "$folder" immediate || true
        rm -rf "$folder"
    ) </dev/null >/dev/null 2>&1 &
    ;;
*) fail 'one of: start FOLDER, stop FOLDER, for-tests' ;;
esac
