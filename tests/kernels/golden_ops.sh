#!/usr/bin/env bash
# Writes tests/kernels/golden_ops.txt: what every operation that a recipe calls writes on the CPU and in the emulator, as hashes.
# A changed line needs its reason in the commit's message.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for run in a b; do
  mkdir "$folder/$run"
  KVLAB_GOLDEN_OPS=$folder/$run build/release/tests/cuda_tests --gtest_filter='*GoldenOps*' --gtest_brief=1 >"$folder/$run.log" &
done
wait
tail -n 1 "$folder"/*.log
arch=$(grep -o 'KVLAB_CPU_ARCH=[^ ]*' build/release/build.ninja | head -n 1 | grep -o 'x86[a-z0-9-]*' || echo none)
diff -r "$folder/a" "$folder/b"  # two processes write the same bits
{
  echo "recipe operation calls:hash cpu emulated:calls:hash:hash, CPU kernels of $arch"
  cat "$folder"/a/*.txt | sort
} >tests/kernels/golden_ops.txt
wc -l tests/kernels/golden_ops.txt
