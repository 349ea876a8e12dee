#!/usr/bin/env bash
# Everything that needs a GPU, in under ten minutes: the tests of the CUDA backend, compute-sanitizer, calibration
# and replays of recordings under several policies with predictions. Results go to a folder, the table to its
# summary.txt and to stdout. Exit code 1 if anything is wrong, 2 if it cannot run here. (Live training runs on the host
# only: there is nothing of it to check on a GPU.)
#
#   bench/gpu_check.sh RESULTS                 build here, then check
#   bench/gpu_check.sh --programs DIR RESULTS  check with programs that `--pack` collected elsewhere
#   bench/gpu_check.sh --pack DIR              after a build: programs and the shared libraries that they need (not those
#                                              of C, C++ or CUDA), for a GPU machine without our dependencies
#
# TENCACHE_BUILD: the build folder (default build/release).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${TENCACHE_BUILD:-build/release}

say() { printf '%s\n' "$*"; }
fail() { printf 'gpu_check: %s\n' "$*" >&2; exit 2; }

pack() {
  local to=$1 file library
  mkdir -p "$to/bin" "$to/lib" || fail "cannot write $to"
  for file in cli/tencache tests/cuda_gpu_test; do
    if [[ -x $build/$file ]]; then
      strip -o "$to/bin/${file##*/}" "$build/$file"
      # What the loader takes from the system, but for what comes with every system.
      ldd "$build/$file" | awk '$3 ~ /^\// {print $3}' |
        grep -Ev '/(libc|libstdc\+\+|libm|libdl|libpthread|librt|libgcc_s|ld-linux[^/]*|libcu[^/]*|libnv[^/]*|libgomp)[.-][^/]*$' |
        while read -r library; do cp -L "$library" "$to/lib/"; done
    fi
  done
  cp -r configs "$to/configs"
  mkdir -p "$to/traces" && cp -r traces/samples "$to/traces/"
  [[ -x $to/bin/cuda_gpu_test ]] || fail "$build has no tests/cuda_gpu_test: build it with the CUDA toolkit"
  say "packed into $to: $(du -sh "$to" | cut -f1)"
}

programs=
case ${1:-} in
  --pack) [[ $# == 2 ]] || fail "--pack DIR"; pack "$2"; exit 0 ;;
  --programs) [[ $# == 3 ]] || fail "--programs DIR RESULTS"; programs=$2; shift 2 ;;
esac
[[ $# == 1 && ${1:-} != -* ]] || { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
results=$1
mkdir -p "$results" || fail "cannot write $results"
: >"$results/summary.txt"

if [[ -n $programs ]]; then
  tencache=$programs/bin/tencache gpu_test=$programs/bin/cuda_gpu_test
  export LD_LIBRARY_PATH=$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export TENCACHE_CONFIGS=$programs/configs
else
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$results/configure.txt" 2>&1 || fail "see $results/configure.txt"
  ninja -C "$build" tencache_programs cuda_gpu_test >"$results/build.txt" 2>&1 || fail "see $results/build.txt"
  tencache=$build/cli/tencache gpu_test=$build/tests/cuda_gpu_test
fi
sample=traces/samples/gpt-small.trace.jsonl.zst

bad=0
# step NAME SECONDS COMMAND…: its output goes to NAME.txt; one line of the summary.
step() {
  local name=$1 seconds=$2 start=$SECONDS code=0 verdict=passed
  shift 2
  timeout "$seconds" "$@" >"$results/$name.txt" 2>&1 || code=$?
  if ((code == 124)); then verdict="STOPPED after $seconds s"; bad=1; elif ((code != 0)); then verdict="FAILED ($code)"; bad=1; fi
  printf '%-32s %s, %d s\n' "$name" "$verdict" $((SECONDS - start)) | tee -a "$results/summary.txt"
  return 0
}

# ---- What is here.
{ nvidia-smi; nvidia-smi --query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv; nproc; free -h; "$tencache" --version; } \
  >"$results/environment.txt" 2>&1
head -20 "$results/environment.txt"

# ---- The backend's tests; all skipped is no pass.
step gpu_tests 120 "$gpu_test"
if grep -q 'SKIPPED' "$results/gpu_tests.txt"; then
  say "no test ran: $(grep -m1 -A3 'Skipped' "$results/gpu_tests.txt" | tail -n +2 | head -1)" | tee -a "$results/summary.txt"
  exit 2
fi
if command -v compute-sanitizer >/dev/null; then
  step sanitizer_memcheck 120 compute-sanitizer --error-exitcode 9 "$gpu_test" --gtest_filter='-*Duration*:*Cancel*'
else
  say "compute-sanitizer is not here" | tee -a "$results/summary.txt"
fi

# ---- This machine, measured; replays are paced to it, or without it to a machine file.
scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/gpu-check-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
machine=$results/this-gpu.yaml
step calibrate 90 "$tencache" calibrate --device cuda --quick -o "$machine" --directory "$scratch"
if [[ ! -s $machine ]]; then machine=p5.4xlarge; fi

# ---- Replays: predicted, measured, verified.
replays() {
  local name=$1 trace=$2 gpu=$3 cpu=$4 seconds=$5 policy
  for policy in on-demand zero-infinity 10cache teraio foresight; do
    step "replay_${name}_$policy" "$seconds" "$tencache" run replay "$trace" -m "$machine" -p "$policy" --device cuda \
      --gpu-memory "$gpu" --cpu-memory "$cpu" --directory "$scratch" --iterations 6 --predict \
      --timeline "$results/replay_${name}_$policy.timeline.json"
    grep -hE 'verified|predicted against measured|^measured|^predicted' "$results/replay_${name}_$policy.txt" |
      sed 's/^/    /' | tee -a "$results/summary.txt"
    grep -q ' 0 corrupted' "$results/replay_${name}_$policy.txt" || bad=1
  done
}
# Every small tensor takes a page of 2 MiB of the GPU: more than the recording's own peak.
replays sample "$sample" 800MiB 512MiB 20
step generate 30 "$tencache" generate --model gpt2-medium --batch 4 --seq 1024 --gpu h200 -o "$scratch/medium.trace.jsonl.zst"
if [[ -s $scratch/medium.trace.jsonl.zst ]]; then replays medium "$scratch/medium.trace.jsonl.zst" 6GiB 16GiB 45; fi

say "results in $results"
exit $bad
