#!/usr/bin/env bash
# What is asked of a GPU, in three calls of at most ten minutes: bench/gpu_day.sh pack|a|b|c. `--help` says how, and
# bench/gpu_day.py what each part does. `pack` is for the machine that builds, the parts for the one with the GPU.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${TENCACHE_BUILD:-build/release}
theirs='libc|libstdc\+\+|libm|libdl|libpthread|librt|libgcc_s|ld-linux[^/]*|libcu[^/]*|libnv[^/]*|libnccl|libgomp'
theirs+='|libtorch[^/]*|libc10[^/]*'
most_mib=45

fail() { printf 'gpu_day: %s\n' "$*" >&2; exit 2; }

# Programs without what only debuggers read, and what the loader takes from the system, but for what comes with every
# system, with CUDA or with LibTorch.
pack() {
  local to=$1 paging=${2:-} bindings=${3:-} file library package purpose
  mkdir -p "$to/bin" "$to/lib" "$to/traces" "$to/python/tencache_recorder/cpp" || fail "cannot write $to"
  [[ -n $bindings ]] || bindings=$(compgen -G "$build/python/tencache/_core*.so" | head -n 1)
  for file in "$build"/cli/tencache "$build"/tests/cuda_gpu_test "$build"/bench/gpu_probe "$bindings"; do
    [[ -x $file ]] ||
      fail "${file:-a Python package} is not there: ninja -C $build tencache_programs cuda_gpu_test gpu_probe"
    [[ $file == "$bindings" ]] || strip -o "$to/bin/${file##*/}" "$file"
    ldd "$file" | awk '$3 ~ /^\// {print $3}' |
      grep -Ev "/($theirs)[.-][^/]*$" |
      while read -r library; do cp -L "$library" "$to/lib/"; done
  done
  package=$to/python/tencache
  cp -rL "$build"/python/tencache "$build"/python/tencache_recorder "$to/python/"
  rm "$package"/_core*.so
  strip --strip-unneeded -o "$package/${bindings##*/}" "$bindings"
  mkdir -p "$package/share/tencache" "$package/cpp" && ln -sfn ../../../../configs "$package/share/tencache/configs"
  # What is compiled with the PyTorch that is there, unless it is carried.
  mapfile -t files < <(awk '/^[a-z]/ { print $2 }' executor/torch/build.txt | sort -u)
  for purpose in "$package" "$to/python/tencache_recorder"; do
    cp --parents executor/torch/build.txt "${files[@]}" "$purpose/cpp/"
  done
  [[ -z $paging ]] || strip --strip-unneeded -o "$to/lib/paging-cuda.so" "$paging" || fail "$paging is no library"
  cp -r configs "$to/"
  cp traces/samples/{gpt-small,gpt2-small,resnet}.trace.jsonl.zst "$to/traces/"
  cp bench/gpu_day.{sh,py} bench/live_programs.py bench/live_process.py bench/generation_programs.py \
    tests/live/python_gpu_test.py "$to/"
  local mib
  mib=$(du -sm "$to" | cut -f1)
  printf 'packed into %s: %s MiB\n' "$to" "$mib"
  ((mib <= most_mib)) || fail "more than the $most_mib MiB that can be carried"
}

case ${1:-} in
  pack)
    (($# >= 2 && $# <= 4)) || fail "pack DIR [PAGING_LIBRARY [CORE]]"
    pack "$2" "${3:-}" "${4:-}" ;;
  *) exec python3 bench/gpu_day.py "$@" ;;
esac
