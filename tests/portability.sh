#!/usr/bin/env bash
# Builds and tests the last commit of this checkout in clean roots of other distributions, with other compilers and with
# parts left out. --help says how; docs/install.md has the results.
set -euo pipefail
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$source_folder/tests/roots.sh"

usage() {
  cat <<'HELP'
Usage: tests/portability.sh [OPTIONS] ROW…

Each row is a root of its own, made with debootstrap: packages are installed there by ./dev setup, the last commit of
this checkout is cloned, built with warnings as errors, and tested by ./dev test. A line of a Markdown table is
printed for each. Needs root, network and 10 GB (rows of torch-…: 30 GB).

  debian-13       Debian 13 (trixie), everything that ./dev setup installs
  ubuntu-24.04    Ubuntu 24.04 (noble, main and universe), likewise
  clang           Debian 12, clang++ instead of g++; without LibTorch
  required        Debian 12, only the packages that no build can do without (./dev setup --required)
  without-NAME    Debian 12, -DTENCACHE_NAME=OFF: torch, cuda, executor, gui, mpi, python, bench, tests. `tencache` is
                  built; no tests are run
  torch-VERSION   Ubuntu 24.04, LibTorch from pip's torch==VERSION and the CUDA toolkit that it wants

  --roots DIR     where roots are made (build/portability)
  --table FILE    append the lines to it as well
  --ccache DIR    compiler cache of all roots (DIR/ccache of --roots)
  --cuda DIR      CUDA toolkit for /usr/local/cuda in the roots (none)
  --keep          leave the roots there; a row that finds its root goes on in it

It compiles on as many cores as it may run on: `taskset -c 0 nice tests/portability.sh …` leaves the others alone.
HELP
}

fail() { printf 'portability: %s\n' "$*" >&2; exit 2; }

roots=$source_folder/build/portability table=/dev/null ccache='' cuda='' keep='' rows=()
while (($#)); do
  case $1 in
    --help|-h) usage; exit ;;
    --keep) keep=1 ;;
    --roots|--table|--ccache|--cuda)
      (($# > 1)) || fail "$1 needs a path"
      declare "${1#--}=$(realpath -m "$2")"
      shift ;;
    debian-13|ubuntu-24.04|clang|required|without-*|torch-*) rows+=("$1") ;;
    *) fail "unknown row or option '$1'; --help lists them" ;;
  esac
  shift
done
((${#rows[@]} > 0)) || { usage >&2; exit 2; }
reason=$(why_no_roots)
[[ -z $reason ]] || fail "$reason"
ccache=${ccache:-$roots/ccache}
mkdir -p "$roots" "$ccache"
binds=("$ccache:/var/cache/ccache" ${cuda:+"$cuda:/usr/local/cuda"})

# What a row is: sets release, setup (a command in the root), options (of CMake), run (what builds and tests).
describe() {
  release=bookworm setup='./dev setup' options='' run='./dev test --no-setup'
  case $1 in
    debian-13) release=trixie ;;
    ubuntu-24.04) release=noble ;;
    clang)
      setup+=' && apt-get install -y -qq --no-install-recommends clang'
      options='-DCMAKE_CXX_COMPILER=clang++ -DTENCACHE_TORCH=OFF' ;;
    required) setup='./dev setup --required' ;;
    without-*)
      options="-DTENCACHE_$(tr '[:lower:]' '[:upper:]' <<<"${1#without-}")=OFF"
      run='cmake --build build/release --parallel $(nproc) --target tencache && build/release/cli/tencache --version' ;;
    torch-*)
      release=noble
      setup+=" && $(declare -f install_torch) && install_torch ${1#torch-}"
      options='-DCMAKE_PREFIX_PATH=$(/opt/venv/bin/python -c "import torch; print(torch.utils.cmake_prefix_path)")'
      options+=' -DTENCACHE_PYTHON=OFF' ;;
  esac
}

# In the root: pip's torch, and the parts of its CUDA toolkit, which lie in folders of their own, as one in /opt/cuda.
install_torch() {
  apt-get install -y -qq --no-install-recommends python3-venv
  python3 -m venv /opt/venv
  /opt/venv/bin/pip install -q --no-compile "torch==$1" numpy
  local site version library parts
  site=$(echo /opt/venv/lib/python3*/site-packages)
  version=$(/opt/venv/bin/python -c 'import torch; print(torch.version.cuda)')
  case $version in
    12.*) parts=("nvidia-cuda-nvcc-cu12==$version.*" "nvidia-cuda-cccl-cu12==$version.*") ;;
    *) parts=("cuda-toolkit[nvcc,crt,nvvm,cccl,cudart,curand]==$version.*") ;;
  esac
  /opt/venv/bin/pip install -q --no-compile "${parts[@]}"
  mkdir -p /opt/cuda
  cp -rsf "$site"/nvidia/*/* /opt/cuda/
  for library in /opt/cuda/lib/*.so.*; do ln -sf "$(basename "$library")" "${library%%.so.*}.so"; done
  ln -sfn lib /opt/cuda/lib64
}

# In the root: the cells of the table that say what was there.
found='
  . /etc/os-release
  cache=build/release/CMakeCache.txt
  compiler=$(sed -n "s/^CMAKE_CXX_COMPILER:[A-Z]*=//p" $cache)
  torch=$(sed -n "s/^Torch_DIR:PATH=\(.*\)/\1/p" $cache)
  version="none"
  for file in $torch/TorchConfigVersion.cmake; do
    [[ -e $file ]] && version=$(sed -n "s/set(PACKAGE_VERSION \"\(.*\)\")/\1/p" $file)
  done
  compiler=$("$compiler" --version | head -n 1)
  printf "%s | %s | %s" "$PRETTY_NAME" "$compiler" "$version"'

run_row() {
  local root=$roots/$1 log=$roots/$1.log release setup options run cells='? | ? | ?' result
  describe "$1"
  printf '%s: %s\n' "$1" "$log" >&2
  if [[ -d $root ]]; then
    git -C "$root/src/tencache" pull -q
  else
    if [[ ! -e $roots/base-$release/made ]]; then
      remove_root "$roots/base-$release"
      make_root "$release" "$roots/base-$release" >"$log" 2>&1 || fail "no root for $release, see $log"
      touch "$roots/base-$release/made"
    fi
    cp -a "$roots/base-$release" "$root"
    mkdir -p "$root/src"
    git clone -q "$source_folder" "$root/src/tencache"
  fi
  if ! in_root "$root" "apt-get update -qq; $setup" >>"$log" 2>&1; then
    result='packages cannot be installed'
  elif ! in_root "$root" "cmake --preset release $options" >>"$log" 2>&1; then
    result='does not configure'
  else
    cells=$(in_root "$root" "$found")
    in_root "$root" "$run" >>"$log" 2>&1 || true
    result=$(tail -n 1 "$log")
  fi
  printf '| %s | %s | %s | %s |\n' "$1" "$cells" "$(git -C "$root/src/tencache" rev-parse --short HEAD)" "$result" |
    tee -a "$table"
  [[ -n $keep ]] || remove_root "$root"
}

for row in "${rows[@]}"; do run_row "$row"; done
