#!/usr/bin/env bash
# Draws the pictures of docs/gui.md and the README with the programs of build/release: docs/images/draw.sh [NAME…]
# Those of a training run (timeline, memory) measure this computer and need PyTorch and the Python module.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tencache=$PWD/build/release/cli/tencache out=$PWD/docs/images
sample=$PWD/traces/samples/gpt2-small.trace.jsonl.zst
small=(-m demo-small-gpu --gpu-memory 1300MiB --cpu-memory 3GiB)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

gui() { "$tencache" gui "${@:2}" --screenshot "$out/gui-$1.png"; }
trained() {
  [[ ! -f gpt-small.timeline.json ]] || return 0
  "$tencache" calibrate --quick -o here.yaml
  PYTHONPATH=$OLDPWD/build/release/python OPENBLAS_NUM_THREADS=1 python3 -m tencache run python -m here.yaml -p 10cache \
    --gpu-memory 200MiB --limit h2d=500MB/s --limit d2h=500MB/s --optimizer-tasks --predict \
    --timeline gpt-small.timeline.json -- "$OLDPWD/python/examples/gpt.py" --steps 8
}

draw_timeline() { trained; gui timeline gpt-small.timeline.json --view timeline; }
draw_memory() { trained; gui memory gpt-small.timeline.json --view memory; }
compared() {
  "$tencache" compare "$sample" "${small[@]}" --samples 64 --json \
    -p ideal,foresight,zero-offload,10cache,zero-infinity,belady,on-demand,layer-streaming,g10 >compare.json
}
draw_what-if() { compared; gui what-if compare.json --view what-if --change pcie=1.5GB/s; }
draw_comparison() { compared; gui comparison compare.json --view comparison; }
draw_sensitivity() {
  "$tencache" sensitivity "$sample" "${small[@]}" --over pcie=0.1GB/s..16GB/s:13 \
    -p foresight,10cache,zero-infinity,on-demand,belady --json >pcie.json
  gui sensitivity pcie.json --view sensitivity
}
draw_cost() { "$tencache" sweep cheaper-instance -o sweep.sqlite >sweep.txt; gui cost sweep.sqlite --view cost; }
draw_browser() {
  "$tencache" replay "$sample" "${small[@]}" -p 10cache --timeline gpt2-small.timeline.json
  gui browser gpt2-small.timeline.json --view browser
}
draw_table() {
  "$tencache" explain "$sample" "${small[@]}" -p zero-infinity --json >explain.json
  gui table explain.json --view table
}

[[ $# -gt 0 ]] || set -- timeline memory what-if comparison sensitivity cost browser table
for name in "$@"; do "draw_$name"; done
