#!/usr/bin/env bash
# Packs what tests/gpu/checks.sh runs, for a machine with a GPU and a checkout but nothing to build with:
#   tests/gpu/pack.sh gpu_programs.tar.xz [build/cuda]
#   there: tar xf gpu_programs.tar.xz && tests/gpu/checks.sh --programs gpu_programs
# The programs, without debugging information, and the libraries they need beyond the C and C++ runtime and the CUDA Toolkit's.
set -euo pipefail

archive=${1:?usage: tests/gpu/pack.sh ARCHIVE.tar.xz [BUILD_FOLDER]}
build=${2:-$(dirname "$0")/../../build/cuda}
programs=(kvlab tests/cuda_tests bench/decode_bench bench/kernel_bench)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
packed="$scratch/gpu_programs"
mkdir -p "$packed/lib" "$packed/tests" "$packed/bench"

for name in "${programs[@]}"; do
  [[ -x $build/$name ]] || { echo "$build/$name is not there: cmake --preset cuda && cmake --build build/cuda --target kvlab cuda_tests decode_bench kernel_bench" >&2; exit 2; }
  strip -o "$packed/$name" "$build/$name"
  ldd "$build/$name"
done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libcublas|libcublasLt|libcuda|libcudart)\.so' |
  xargs -r cp -L -t "$packed/lib"

# The programs hold the same kernels: with a window as large as all of them, once.
tar -C "$scratch" -c gpu_programs | xz --lzma2=preset=3,dict=512MiB >"$archive"
du -h "$archive" | cut -f 1 | xargs printf '%s: %s\n' "$archive"
