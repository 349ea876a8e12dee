#!/usr/bin/env bash
# Everything that needs a GPU, in three parts of less than ten minutes each, after the build:
#   a  what single calls of the driver take; the tests of the CUDA backend, also under compute-sanitizer; calibration;
#      replays with predictions
#   b  PyTorch programs: bit for bit plain PyTorch's, timed between runs of plain PyTorch, predicted against measured
#   c  text generation beside Accelerate
# Results go to a folder, the table to its summary.txt and to stdout, and all of it but what is larger than 12 MiB to
# RESULTS.tar.gz. A step that has passed is not repeated: called again, a part goes on. Exit code 1 if anything is wrong
# or was not reached in time, 2 if it cannot run here.
#
#   bench/gpu_check.sh [--part a|b|c] RESULTS                 build here, then check (without --part: all three)
#   bench/gpu_check.sh [--part a|b|c] --programs DIR RESULTS  check with programs that `--pack` collected elsewhere
#   bench/gpu_check.sh --pack DIR              after a build: programs, the Python package and the shared libraries that
#                                              they need (not those of C, C++, CUDA or LibTorch), for a GPU machine
#                                              without our dependencies
#
# TENCACHE_BUILD: the build folder (default build/release). PyTorch is python3's.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${TENCACHE_BUILD:-build/release}

say() { printf '%s\n' "$*"; }
fail() { printf 'gpu_check: %s\n' "$*" >&2; exit 2; }

pack() {
  local to=$1 file library bindings
  bindings=$(compgen -G "$build/python/tencache/_core*.so")
  mkdir -p "$to/bin" "$to/lib" || fail "cannot write $to"
  for file in "$build"/cli/tencache "$build"/tests/cuda_gpu_test "$build"/bench/gpu_probe $bindings; do
    if [[ -x $file ]]; then
      [[ $file == "$bindings" ]] || strip -o "$to/bin/${file##*/}" "$file"
      # What the loader takes from the system, but for what comes with every system, with CUDA or with LibTorch.
      ldd "$file" | awk '$3 ~ /^\// {print $3}' |
        grep -Ev '/(libc|libstdc\+\+|libm|libdl|libpthread|librt|libgcc_s|ld-linux[^/]*|libcu[^/]*|libnv[^/]*|libnccl|libgomp|libtorch[^/]*|libc10[^/]*)[.-][^/]*$' |
        while read -r library; do cp -L "$library" "$to/lib/"; done
    fi
  done
  if [[ -n $bindings ]]; then
    local package=$to/python/tencache
    mkdir -p "$package/share/tencache" "$package/cpp" "$to/python/tencache_recorder/cpp"
    cp -rL "$build"/python/tencache "$build"/python/tencache_recorder "$to/python/"
    strip --strip-unneeded "$package"/_core*.so
    ln -sfn ../../../../configs "$package/share/tencache/configs"
    # What is compiled with the PyTorch that is there.
    local files
    mapfile -t files < <(awk '/^[a-z]/ { print $2 }' executor/torch/build.txt)
    cp --parents executor/torch/build.txt "${files[@]}" "$package/cpp/"
    cp --parents executor/torch/build.txt "${files[@]}" "$to/python/tencache_recorder/cpp/"
  fi
  cp -r configs "$to/configs"
  mkdir -p "$to/traces" && cp -r traces/samples "$to/traces/"
  [[ -x $to/bin/cuda_gpu_test && -x $to/bin/gpu_probe ]] ||
    fail "$build has no tests/cuda_gpu_test and bench/gpu_probe: build them with the CUDA toolkit"
  say "packed into $to: $(du -sh "$to" | cut -f1)"
}

programs='' parts=(a b c)
while [[ ${1:-} == --* ]]; do
  case $1 in
    --pack) [[ $# == 2 ]] || fail "--pack DIR"; pack "$2"; exit 0 ;;
    --programs) (($# > 2)) || fail "--programs DIR RESULTS"; programs=$2; shift 2 ;;
    --part) [[ ${2:-} == [abc] ]] || fail "--part is a, b or c"; parts=("$2"); shift 2 ;;
    *) break ;;
  esac
done
[[ $# == 1 && ${1:-} != -* ]] || { sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '/^set /,$d'; exit 2; }
results=$1
mkdir -p "$results" || fail "cannot write $results"

if [[ -n $programs ]]; then
  tencache=$programs/bin/tencache gpu_test=$programs/bin/cuda_gpu_test probe=$programs/bin/gpu_probe
  # Its own libraries, and those of CUDA that are packages beside it.
  torch=$(python3 -c 'import glob, os, torch; root = os.path.dirname(torch.__file__)
print(":".join([os.path.join(root, "lib")] + glob.glob(os.path.join(os.path.dirname(root), "nvidia", "*", "lib"))))' 2>/dev/null)
  export LD_LIBRARY_PATH=$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}${torch:+:$torch}
  export TENCACHE_CONFIGS=$programs/configs
  [[ ! -d $programs/python ]] || export PYTHONPATH=$programs/python${PYTHONPATH:+:$PYTHONPATH}
else
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$results/configure.txt" 2>&1 || fail "see $results/configure.txt"
  ninja -C "$build" tencache_programs cuda_gpu_test gpu_probe >"$results/build.txt" 2>&1 || fail "see $results/build.txt"
  tencache=$build/cli/tencache gpu_test=$build/tests/cuda_gpu_test probe=$build/bench/gpu_probe
  export PYTHONPATH=$PWD/$build/python${PYTHONPATH:+:$PYTHONPATH}
fi
sample=traces/samples/gpt-small.trace.jsonl.zst

missing() { ldd "$1" 2>&1 | awk '/not found/ {print $1}' | sort -u | tr '\n' ' '; }
for program in "$tencache" "$gpu_test" "$probe"; do
  [[ -x $program ]] || fail "$program is not there"
  lacks=$(missing "$program")
  [[ -z $lacks ]] || fail "$program lacks shared libraries: $lacks"
done

bad=0
# step NAME SECONDS COMMAND…: its output goes to NAME.txt; one line of the summary. Its exit code is the command's. A
# step that has passed before is left out.
step() {
  local name=$1 seconds=$2 start=$SECONDS code=0 verdict=passed
  shift 2
  if [[ -e $results/$name.passed ]]; then return 0; fi
  ((seconds = seconds < last - SECONDS ? seconds : last - SECONDS))
  if ((seconds <= 0)); then
    printf '%-32s NOT REACHED\n' "$name" | tee -a "$results/summary.txt"
    : >"$results/$name.txt"
    bad=1
    return 1
  fi
  timeout "$seconds" "$@" >"$results/$name.txt" 2>&1 || code=$?
  if ((code == 124)); then verdict="STOPPED after $seconds s"; bad=1; elif ((code != 0)); then verdict="FAILED ($code)"; bad=1; fi
  ((code != 0)) || : >"$results/$name.passed"
  printf '%-32s %s, %d s\n' "$name" "$verdict" $((SECONDS - start)) | tee -a "$results/summary.txt"
  return "$code"
}
note() { say "    $*" | tee -a "$results/summary.txt"; }
wrong() { note "WRONG: $*"; bad=1; }

# ---- What is here. The card is in the summary: figures of two kinds are not to be compared.
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
[[ -n $card ]] || fail "nvidia-smi finds no GPU"
known=$(cat "$results/card.txt" 2>/dev/null || printf '%s' "$card")
[[ $card == "$known" ]] || fail "$results is of another card ($known, this is $card): name another folder"
printf '%s' "$card" >"$results/card.txt"
note "parts ${parts[*]} on $card"
{ nvidia-smi; nvidia-smi --query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv; nproc; free -h; "$tencache" --version; } \
  >"$results/environment.txt" 2>&1
head -20 "$results/environment.txt"

scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/gpu-check-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
machine=$results/this-gpu.yaml

# ---- The backend's tests; all skipped is no pass.
gpu_tests() {
  step gpu_tests 60 "$gpu_test"
  if ! grep -q '\[       OK \]' "$results/gpu_tests.txt"; then
    say "no test ran: $(grep -m1 -A3 'Skipped' "$results/gpu_tests.txt" | tail -n +2 | head -1)" | tee -a "$results/summary.txt"
    exit 2
  fi
  note "$(grep -c '\[  SKIPPED \]' "$results/gpu_tests.txt") cases skipped"
  if command -v compute-sanitizer >/dev/null; then
    step sanitizer_memcheck 120 compute-sanitizer --error-exitcode 9 "$gpu_test" --gtest_filter='-*Duration*:*Cancel*'
  else
    note "compute-sanitizer is not here"
  fi
}

# This machine, measured; runs are paced to it, or without it to a machine file.
calibrated() {
  step calibrate 60 "$tencache" calibrate --device cuda --quick -o "$machine" --directory "$scratch"
  if [[ ! -s $machine ]]; then machine=p5.4xlarge; fi
}

# What a run's text says of its prediction.
figures() { grep -hE 'verified|predicted against measured|^measured|^predicted|iteration|step time' "$1" | head -8 | sed 's/^/    /' | tee -a "$results/summary.txt"; }

# ---- The example under several policies: losses, and the weights' hash at the end.
training() {
  local why
  if ! why=$(python3 -c 'import tencache, torch; assert torch.version.cuda, "this PyTorch has no CUDA"' 2>&1); then
    note "training: ${why##*$'\n'}"
    return
  fi
  local example=(python/examples/gpt.py --device cuda --size gpt2-bytes --steps 8) policy name settings
  step train_plain 30 python3 "${example[@]}" || return
  for policy in on-demand zero-infinity 10cache foresight; do
    name=train_$policy
    settings=()
    [[ $policy != zero-infinity ]] || settings=(--set overflow=evict)  # gives up by default where it could evict
    step "$name" 45 python3 -m tencache run python --device cuda -m "$machine" -p "$policy" "${settings[@]}" \
      --gpu-memory 60% --predict --directory "$scratch" --timeline "$results/$name.timeline.json" -- "${example[@]}" ||
      continue
    figures "$results/$name.txt"
    if diff <(grep -oE '^step +[0-9]+ +loss [^ ]+|weights .*' "$results/train_plain.txt") \
      <(grep -oE '^step +[0-9]+ +loss [^ ]+|weights .*' "$results/$name.txt") >/dev/null; then
      note "bit for bit plain training's"
    else
      wrong "losses or weights differ from plain training's"
    fi
  done
}

# ---- PyTorch programs as they are: bit for bit plain PyTorch's.
pytorch_programs() {
  local why
  if ! why=$(python3 -c 'import tencache, torch; assert torch.version.cuda, "this PyTorch has no CUDA"' 2>&1); then
    note "PyTorch programs: ${why##*$'\n'}"
    return
  fi
  local program=(bench/live_programs.py --device cuda --program gpt --width 768 --layers 12 --context 512 --batch 8 --steps 10)
  local result='import json, sys; r = json.loads([line for line in open(sys.argv[1]) if line.startswith("{\"seconds")][0])'
  local same="$result; print(r['loss'], r['sha256'])" median="$result; print('median step', sorted(r['seconds'][3:])[3], 's')"
  step python_plain 30 python3 "${program[@]}" || return
  note "$(python3 -c "$median" "$results/python_plain.txt")"
  local number=0
  for policy in foresight lru; do
    step "python_$policy" 45 python3 -m tencache run python --device cuda -m "$machine" -p "$policy" --no-pace --gpu-memory 60% \
      --predict --directory "$scratch" -- "${program[@]}" || continue
    figures "$results/python_$policy.txt"
    note "$(python3 -c "$median" "$results/python_$policy.txt")"
    if [[ $(python3 -c "$same" "$results/python_plain.txt") == "$(python3 -c "$same" "$results/python_$policy.txt")" ]]; then
      note "bit for bit plain PyTorch's"
    else
      wrong "loss or weights differ from plain PyTorch's"
    fi
    ((++number))  # plain PyTorch on either side of each: what it varies by says what the ratio is worth
    step "python_plain_$number" 30 python3 "${program[@]}" && note "$(python3 -c "$median" "$results/python_plain_$number.txt")"
  done
}

# What `run python` compiles at first use takes most of a minute: it is no part of what is timed.
paging_library() {
  step paging_library 100 python3 -c 'from tencache._paging import Paging; Paging.load("cuda", print)'
}

# ---- Generation with half of the weights away from the GPU, beside Accelerate.
generation() {
  python3 -c 'import accelerate, tencache, torch, transformers; assert torch.version.cuda' 2>/dev/null ||
    { note "generation: needs tencache, transformers and accelerate, and a PyTorch with CUDA"; return; }
  local weights=$scratch/generation programs=bench/generation_programs.py half=4GiB name
  local seconds='import json, statistics, sys
for line in open(sys.argv[1]):
    if line.startswith("{\"seconds"):
        r = json.loads(line)
        print("%.1f ms a token, %.1f ms at best; tokens %s" % (1e3 * statistics.median(r["seconds"][3:]), 1e3 * min(r["seconds"]), r["sha256"][:8]))'
  step generation_make 45 python3 "$programs" make "$weights" --rivals --device cuda --layers 16 --hidden 4096 \
    --feed-forward 14336 --kv-heads 8 || return
  for name in torch accelerate; do
    step "generation_$name" 45 python3 "$programs" generate $name "$weights" --device cuda --gpu-memory $half
    note "$(python3 -c "$seconds" "$results/generation_$name.txt")"
  done
  for name in foresight belady; do
    step "generation_$name" 75 python3 -m tencache run python --device cuda -m "$machine" --no-pace -p $name --gpu-memory $half \
      --directory "$scratch" -- "$programs" generate torch "$weights" --device cuda
    note "$(python3 -c "$seconds" "$results/generation_$name.txt")"
  done
  rm -rf "$weights"
}

# ---- Replays: predicted, measured, verified.
replays() {
  local name=$1 trace=$2 gpu=$3 cpu=$4 seconds=$5 policy
  for policy in on-demand zero-infinity 10cache foresight; do
    step "replay_${name}_$policy" "$seconds" "$tencache" run replay "$trace" -m "$machine" -p "$policy" --device cuda \
      --gpu-memory "$gpu" --cpu-memory "$cpu" --directory "$scratch" --iterations 6 --predict \
      --timeline "$results/replay_${name}_$policy.timeline.json"
    figures "$results/replay_${name}_$policy.txt"
    grep -qE '[1-9][0-9]* tensors verified, 0 corrupted' "$results/replay_${name}_$policy.txt" || wrong "not verified"
  done
}
all_replays() {
  # Every small tensor takes a page of 2 MiB of the GPU: more than the recording's own peak.
  replays sample "$sample" 800MiB 512MiB 15
  if step generate 30 "$tencache" generate --model gpt2-medium --batch 4 --seq 1024 --gpu h200 -o "$results/medium.trace.jsonl.zst"; then
    replays medium "$results/medium.trace.jsonl.zst" 6GiB 16GiB 30
  fi
}

# What a part's steps may take in sum is less than its time.
for part in "${parts[@]}"; do
  last=$((SECONDS + 560))
  calibrated
  case $part in
    a) step driver_calls 30 "$probe" --json; gpu_tests; all_replays ;;
    b) paging_library && { training; pytorch_programs; } ;;
    c) paging_library && generation ;;
  esac
done

(cd "$results" && find . -type f -size -12M -print0) >"$scratch/files"
tar -czf "$results.tar.gz" -C "$results" --null -T "$scratch/files"
say "results in $results and $results.tar.gz"
exit $bad
