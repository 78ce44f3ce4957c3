#!/usr/bin/env bash
# A sweep of many short runs: how soon it says something, four shards of which one is killed midway and run again, the merged result compared
# byte for byte with that of one program. Prints the seconds of each part.
#   tests/app/large_sweep.sh [RUNS]     RUNS: rounded up to a multiple of 12; default: 240. The full check is 12000.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
program=${KVLAB_PROGRAM:-$root/build/release/kvlab}
runs=${1:-240}
work=$(mktemp -d "${TMPDIR:-/tmp}/kvlab-sweep.XXXXXX")
trap 'rm -rf "$work"' EXIT
export KVLAB_PROFILES=${KVLAB_PROFILES:-$root/profiles}
cd "$work"

# A third of them are configurations: each has three seeds.
rates=$(seq -s ', ' 1 $(((runs + 11) / 12)))
runs=$((12 * ((runs + 11) / 12)))
cat >large.yaml <<TEXT
name: large
model: llama-3.1-8b
hardware: h100
trace:
  generate: {requests: 4, prompt_tokens: {fixed: {value: 200}}, output_tokens: {uniform: {min: 1, max: 16}},
             arrival: {poisson: {rate_per_s: [$rates]}}}
memory: {num_blocks: [200, 400]}
max_model_len: 1024
scheduler: [vllm_v1, sarathi]
seeds: 3
TEXT

now() { date +%s%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", (b - a) / 1e9 }'; }
fail() { echo "large_sweep: $*" >&2; exit 1; }

# one PART COMMAND...: runs it with its output in a log and prints its seconds.
timed() {
  local name=$1 began
  shift
  began=$(now)
  "$@" >"$name.out" 2>"$name.err" || fail "$name: $(tail -n 3 "$name.err")"
  echo "$name: $(since "$began") s"
}

# The first word on stderr or stdout, and then the whole.
began=$(now)
"$program" run large.yaml --out whole/large >whole.out 2>whole.err &
sweep=$!
until [[ -s whole.out || -s whole.err ]] || ! kill -0 "$sweep" 2>/dev/null; do sleep 0.1; done
echo "first output: $(since "$began") s"
until [[ -n $(ls whole/large/runs 2>/dev/null) ]] || ! kill -0 "$sweep" 2>/dev/null; do sleep 0.1; done
echo "first run: $(since "$began") s"
wait "$sweep" || fail "the sweep: $(tail -n 3 whole.err)"
echo "$runs runs in one program: $(since "$began") s"

for shard in 1 3 4; do timed "shard $shard" "$program" run large.yaml --shard $shard/4 --out parts/large --quiet; done
"$program" run large.yaml --shard 2/4 --out parts/large --quiet --jobs 1 &
killed=$!
half=$((runs / 8))
until (($(ls parts/large.shards/2-of-4/runs 2>/dev/null | wc -l) >= half)) || ! kill -0 "$killed" 2>/dev/null; do sleep 0.01; done
kill -KILL "$killed" 2>/dev/null || fail "shard 2 ended before it could be killed: use more RUNS"
wait "$killed" 2>/dev/null || true
kept=$(ls parts/large.shards/2-of-4/runs | wc -l)
((kept < runs / 4)) || fail "shard 2 was complete when it was killed: use more RUNS"
status=0
"$program" merge large.yaml --out parts/large --quiet 2>missing.err || status=$?
[[ $status == 1 ]] && grep -q "of $runs runs are missing" missing.err || fail "merging without shard 2 said: $(cat missing.err)"
timed "shard 2 again, after $kept runs" "$program" run large.yaml --shard 2/4 --out parts/large --quiet
timed "merge" "$program" merge large.yaml --out parts/large

# All but the seconds that runs took, and what names the host, the folder and the date.
normal() { find "$1" -name manifest.json -path '*/runs/*' -exec sed -i 's/"wall_s": [0-9.e-]*/"wall_s": 0/' {} +; }
normal whole/large
normal parts/large
diff -r --exclude=.lock --exclude=.kvlab.json whole/large/runs parts/large/runs >diff.txt || fail "runs differ: $(head -n 3 diff.txt)"
for table in summary.csv requests.csv timeline.csv; do cmp "whole/large/$table" "parts/large/$table" || fail "$table differs"; done
timed "all again" "$program" run large.yaml --out whole/large --quiet
echo "equal: $runs runs of one program and of four shards"
