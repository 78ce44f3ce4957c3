#!/usr/bin/env bash
# Checks that need a GPU (docs/gpu-checks.md), step by step, from a checkout's root:
#   tests/gpu/checks.sh [--programs DIR] [--out DIR] [STEP ...]     all steps, cheapest first, if none is named
# --programs: build/cuda, or the folder that tests/gpu/pack.sh packed. Each step has a time limit, which KVLAB_GPU_SLOWER=N multiplies; its output goes
# to OUT/STEP.log, the verdicts and the figures asked for to OUT/report.txt. Steps that calibrate continue from the measurements of an earlier call.
# Exit status: 1 if a step failed or ran out of time, 2 for a wrong call.
set -uo pipefail

cd "$(dirname "$0")/../.." || exit 2
programs=build/cuda out=results/gpu_checks
large=${KVLAB_GPU_MODEL:-llama-3.1-8b}  # whose shape is served with random weights
minutes=${KVLAB_GPU_MINUTES:-8}         # of its calibration
steps=(golden tests decode sparse kernels accuracy calibrate_probe swap sim_vs_real_probe calibrate_large sim_vs_real_large record memcheck racecheck initcheck)
export KVLAB_REQUIRE_GPU=1 KVLAB_NO_FIGURES=1

declare -A limit=([golden]=120 [tests]=420 [decode]=120 [sparse]=120 [kernels]=480 [accuracy]=420 [calibrate_probe]=240 [swap]=120 [sim_vs_real_probe]=420
                  [calibrate_large]=600 [sim_vs_real_large]=540 [record]=120 [memcheck]=420 [racecheck]=420 [initcheck]=420)

kvlab() { "$programs/kvlab" "$@"; }

# The probe in bf16 against logits of Hugging Face in float32.
step_golden() { "$programs/tests/cuda_tests" --gtest_filter='*GoldenLogits*'; }

# Every kernel against its CPU version, and the engine on tiny models.
step_tests() { "$programs/tests/cuda_tests" --gtest_brief=1; }

# A decode step of the shape of Llama-3.1-8B: the graph against the sum of its kernels.
step_decode() { "$programs/bench/decode_bench"; }

# Kernels one by one, cold, against their goals (bench/README.md).
step_kernels() { "$programs/bench/kernel_bench" --benchmark_min_time=0.1 --benchmark_out="$out/kernels.json" --benchmark_out_format=json; }

# Block-sparse prefill of 8,192 tokens: lists of all blocks take at most 1.5 times as long as dense prefill, of half and a tenth of them at most
# 0.65 and 0.2 times as long as lists of all.
step_sparse() {
  "$programs/bench/kernel_bench" --benchmark_min_time=0.1 --benchmark_filter='(sparse|attention)_prefill/bf16/m8192_n0' --benchmark_out="$out/sparse.json" \
    --benchmark_out_format=json || return 1
  python3 - "$out/sparse.json" <<'EOF'
import json, sys
times = {"/".join(b["name"].split("/")[:3]): b["real_time"] for b in json.load(open(sys.argv[1]))["benchmarks"] if "real_time" in b and not b.get("error_occurred")}
shape = "m8192_n0_q32_kv8_d128"
try:
    dense, all_, half, tenth = (times[n] for n in [f"attention_prefill/bf16/{shape}"] + [f"sparse_prefill/bf16/{shape}_s{s}" for s in (100, 50, 10)])
except KeyError as name:
    sys.exit(f"no time of {name}")
print(f"all blocks {all_ / dense:.2f} times dense prefill; half of them {half / all_:.2f}, a tenth {tenth / all_:.2f} times all blocks")
sys.exit(not (all_ <= 1.5 * dense and half <= 0.65 * all_ and tenth <= 0.2 * all_))
EOF
}

# Answers of the probe in bf16: the full cache gives as many right answers as on the CPU.
step_accuracy() {
  local backend
  for backend in cpu cuda; do
    kvlab run experiments/accuracy_probe.yaml --set "backend=$backend" --force --quiet --out "$out/accuracy_$backend" || return 1
  done
  kvlab compare "$out/accuracy_cpu" "$out/accuracy_cuda" || return 1
  same_full_answers "$out/accuracy_cpu/summary.csv" "$out/accuracy_cuda/summary.csv"
}

# exact_match_frac of the full cache, task by task, in both files.
same_full_answers() {
  local of=() file
  for file in "$@"; do
    of+=("$(awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next } $at["recipe"] == "full" { print $at["task"], $at["length"], $at["exact_match_frac"] }' "$file" | sort)")
  done
  [[ -n ${of[0]} ]] || { echo "no rows of the full cache in $1"; return 1; }
  diff <(echo "${of[0]}") <(echo "${of[1]}") && echo "the full cache: $(wc -l <<<"${of[0]}") tasks and lengths graded alike on CPU and GPU"
}

step_calibrate_probe() { kvlab calibrate --gpu 0 --model engine/probe/config.json --minutes 2 --out "$out/profile_probe"; }
step_calibrate_large() { kvlab calibrate --gpu 0 --model "$large" --minutes "$minutes" --out "$out/profile_large"; }

# A trace served with graphs, swap and prefix sharing; few blocks make it swap.
step_swap() {
  kvlab run experiments/sim_vs_real.yaml --model engine/probe --set backend=cuda --set "profile.kvlab.path=$out/profile_probe" \
    --set 'scheduler={vllm_v0: {preemption: swap}}' --set memory.num_blocks=128 --set host=engine --force --quiet --out "$out/swap" || return 1
  awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next } { swaps += $at["swaps"] } END { print swaps " swaps"; exit !(swaps > 0) }' "$out/swap/summary.csv"
}

# Simulation against engine: mean and P50, P90, P99 of TTFT, TPOT and E2E within 5 %. The other arguments go to `kvlab run`.
sim_vs_real() {
  local name=$1
  shift
  kvlab run experiments/sim_vs_real.yaml --set backend=cuda --set "profile.kvlab.path=$out/profile_$name" --set 'scheduler=[vllm_v1, sarathi]' \
    --set validate.max_diff_frac=0.05 --force --out "$out/sim_vs_real_$name" "$@"
}
step_sim_vs_real_probe() { sim_vs_real probe --model engine/probe; }
step_sim_vs_real_large() { sim_vs_real large --set "model=$large" --set weights=random; }

# Attention recorded on the GPU with a policy at work: replay finds in it the fidelity that it finds in what the CPU records.
step_record() {
  local backend
  for backend in cpu cuda; do
    kvlab trace record --model engine/probe --text README.md --prompt-tokens 2000 --decode-tokens 16 --kv-policy snapkv --budget-tokens 256 --dtype f32 \
      --backend "$backend" --out "$out/recorded_$backend.safetensors" || return 1
    kvlab run experiments/replay_file.yaml --set "samples.niah.file=$out/recorded_$backend.safetensors" --force --quiet --out "$out/recorded_$backend" || return 1
  done
  kvlab compare "$out/recorded_cpu" "$out/recorded_cuda"
}

# Reads and writes beside arrays, races on shared memory, what is not initialised.
sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 42; }
  compute-sanitizer --tool "$1" --error-exitcode 1 "$programs/tests/cuda_tests" --gtest_brief=1 --gtest_filter='Engine*:AttentionDecode*:AttentionPrefill*:SparsePrefill*:AppendKv*:Evict*'
}
step_memcheck() { sanitize memcheck; }
step_racecheck() { sanitize racecheck; }
step_initcheck() { sanitize initcheck; }

# Lines of a step's log that hold what it was run for.
figures_of() {
  case $1 in
    golden) grep 'positions: mean KL' "$2" ;;
    tests | *check) grep -E '\[  (PASSED|FAILED)  \]|ERROR SUMMARY' "$2" ;;
    decode) grep -E 'decode_step|sum of kernels|graph|GB per step' "$2" ;;
    sparse) grep 'times dense prefill' "$2" ;;
    kernels) grep -E 'b64_n4096|b32_n4096|b1_n4096_|b1_n32768|m8192_n0|r64_n32768|ERROR|wrong result' "$2" ;;
    accuracy) grep 'the full cache' "$2" ;;
    calibrate_*) grep -E '^all ' "$2" ;;
    swap) grep ' swaps' "$2" ;;
    sim_vs_real_*) grep -A 40 'simulated / engine' "$2" ;;
    record) tail -n 12 "$2" ;;
  esac
}

run_step() {
  local name=$1 began=$SECONDS status verdict
  timeout --kill-after=20 "$((${limit[$name]} * ${KVLAB_GPU_SLOWER:-1}))" bash "$0" --programs "$programs" --out "$out" --only "$name" >"$out/$name.log" 2>&1 </dev/null
  status=$?
  case $status in
    0) verdict=passed ;;
    42) verdict=skipped ;;
    124 | 137) verdict="OUT OF TIME" ;;
    *) verdict="FAILED ($status)" ;;
  esac
  printf '%-18s %-12s %5d s\n' "$name" "$verdict" $((SECONDS - began)) | tee -a "$out/report.txt"
  figures_of "$name" "$out/$name.log" | sed 's/^/    /' >>"$out/report.txt"
  [[ $status == 0 || $status == 42 ]] || { tail -n 12 "$out/$name.log" | sed 's/^/    | /' | tee -a "$out/report.txt"; return 1; }
}

only="" chosen=()
while (($#)); do
  case $1 in
    --programs) programs=${2:?--programs needs a folder}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --only) only=${2:?}; shift ;;
    *) [[ -v limit[$1] ]] || { echo "unknown step '$1'; steps: ${steps[*]}" >&2; exit 2; }
       chosen+=("$1") ;;
  esac
  shift
done
programs=$(realpath -m "$programs") out=$(realpath -m "$out")
[[ -x $programs/kvlab ]] || { echo "$programs/kvlab is not there; docs/gpu-checks.md says how to build it" >&2; exit 2; }
if [[ -d $programs/lib ]]; then export LD_LIBRARY_PATH="$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; fi
if [[ -n $only ]]; then "step_$only"; exit; fi

mkdir -p "$out"
: >"$out/report.txt"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | tee -a "$out/report.txt"
failed=0
for name in "${chosen[@]:-${steps[@]}}"; do run_step "$name" || failed=1; done
echo "the report: $out/report.txt"
exit $failed
