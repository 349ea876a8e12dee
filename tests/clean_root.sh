#!/usr/bin/env bash
# Runs the README's two commands as a newcomer does: on a Debian 12 that has nothing, in a clone of the last commit.
set -euo pipefail
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$source_folder/tests/roots.sh"

usage() {
  cat <<'HELP'
Usage: tests/clean_root.sh [OPTIONS] [demo] [test] [setup]

Makes a root of Debian 12 (debootstrap, minbase) for each command, clones the last commit of this checkout into it, and
runs ./dev COMMAND there. Prints how long each takes, packages included, and its closing lines. Without a command:
demo and test. `setup` only installs the packages.

  --cache DIR   keep the root that debootstrap makes in DIR, and use the one that is there
  --in DIR      where roots and logs are made (build/clean-root); roots are removed, logs stay

../shared is seen beside the clone if it exists, read-only. Needs root, network and 15 GB.
Exit codes: 0 all passed; 1 a command failed; 2 bad usage; 77 no root can be made here.
HELP
}

fail() { printf 'clean_root: %s\n' "$*" >&2; exit 2; }
skip() { printf 'skipped: %s\n' "$*"; exit 77; }

folder=$source_folder/build/clean-root cache='' commands=()
while (($#)); do
  case $1 in
    --help|-h) usage; exit ;;
    --cache|--in)
      (($# > 1)) || fail "$1 needs a path"
      if [[ $1 == --in ]]; then folder=$(realpath -m "$2"); else cache=$(realpath -m "$2"); fi
      shift ;;
    demo|test|setup) commands+=("$1") ;;
    *) fail "unknown command or option '$1'; --help lists them" ;;
  esac
  shift
done
((${#commands[@]} > 0)) || commands=(demo test)
reason=$(why_no_roots)
[[ -z $reason ]] || skip "$reason"
[[ -z $(git -C "$source_folder" status --porcelain) ]] || echo "clean_root: what is not committed is left out" >&2

mkdir -p "$folder"
work=$(mktemp -d "$folder/root-XXXXXX")  # this run's roots
running=''
stop() {  # also when interrupted: ends what runs in a root, then removes the roots
  trap '' INT TERM HUP
  if [[ -n $running ]]; then
    # The first process of the namespace: all others end with it, and only then unshare does.
    for unshare in $(pgrep -P "$running"); do pkill -KILL -P "$unshare" || true; done
    wait "$running" || true
  fi
  remove_root "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM HUP

# make_root and in_root, in the background, because a trap waits for commands in the foreground.
run() { "$@" & running=$!; local status=0; wait "$running" || status=$?; running=''; return $status; }

base=${cache:+$cache/bookworm}
if [[ -z $base || ! -e $base/etc/debian_version ]]; then
  run make_root bookworm "$work/base" >"$folder/debootstrap.log" 2>&1 ||
    skip "debootstrap made no root: $(tail -n 1 "$folder/debootstrap.log") ($folder/debootstrap.log)"
  if [[ -n $base ]]; then mkdir -p "$cache" && mv "$work/base" "$base"; else base=$work/base; fi
fi

binds=("$source_folder/../shared:/src/shared:ro")
failed=0
for command in "${commands[@]}"; do
  root=$work/$command log=$folder/$command.log
  cp -a "$base" "$root"
  mkdir "$root/src"
  git clone -q "$source_folder" "$root/src/tencache"
  printf '== ./dev %s of %s, %s cores: %s\n' "$command" "$(git -C "$source_folder" rev-parse --short HEAD)" "$(nproc)" "$log"
  started=$SECONDS status=0
  run in_root "$root" "./dev $command" >"$log" 2>&1 || status=$?
  taken=$((SECONDS - started))
  tail -n 5 "$log"
  printf '== ./dev %s: %d min %02d s, exit code %d\n\n' "$command" $((taken / 60)) $((taken % 60)) "$status"
  ((status == 0)) || failed=1
  remove_root "$root"
done
exit $failed
