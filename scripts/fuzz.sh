#!/usr/bin/env bash
# Fuzzes every reader of hostile bytes for FUZZ_SECONDS each. What breaks one is left in fuzz/artifacts, with the
# command that shows it again. With FUZZ_SEED the dice are the same each time, and nothing is taken from
# earlier runs: the same code then meets the same inputs, in the order in which the seconds allow them.
set -euo pipefail

seconds=${FUZZ_SECONDS:-120}
seed=${FUZZ_SEED:-0}
cd "$(dirname "$0")/.."

# Instrumentation is an unstable option of the compiler. This lets the stable one take it, here only.
export RUSTC_BOOTSTRAP=1

# Built with the address sanitizer, for the little unsafe code of libraries that reads such bytes too.
cargo fuzz build --fuzz-dir fuzz

targets=$(cargo fuzz list --fuzz-dir fuzz)
for target in $targets; do
    corpus=fuzz/corpus/$target
    if [[ $seed != 0 ]]; then
        corpus=fuzz/corpus/seeded/$target
        rm -rf "$corpus"
    fi
    python3 fuzz/seeds.py "$target" "$corpus"
    log=$(mktemp)
    # An input that takes ten seconds counts as one that hangs: long enough that a busy machine, slowed down by
    # the sanitizer, is not taken for a fault. The memory is what a job could be given without harm.
    if cargo fuzz run --fuzz-dir fuzz "$target" "$corpus" -- \
        -seed="$seed" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=16384 \
        -print_final_stats=1 >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        printf 'fuzz: %-8s %s inputs in %s s\n' "$target" "$runs" "$seconds"
        rm -f "$log"
    else
        tail -n 60 "$log" >&2
        grep --text -A 3 -E "panicked at|^SUMMARY:|^==[0-9]+==" "$log" | head -n 20 >&2
        rm -f "$log"
        printf 'fuzz: %s broke\n' "$target" >&2
        exit 1
    fi
done
