# Clean roots of distributions, made with debootstrap: what clean_root.sh and portability.sh share. To be sourced.
#
# binds: what in_root shows of this computer, each SOURCE:PLACE or SOURCE:PLACE:ro; a source that is not there is left out.
binds=()

# Why no root can be made here; nothing: one can.
why_no_roots() {
  if ((EUID != 0)); then
    echo "debootstrap and chroot need root"
  elif ! command -v debootstrap >/dev/null; then
    echo "debootstrap is not installed (package debootstrap)"
  elif ! unshare --mount --pid --fork mount -t tmpfs none /mnt 2>/dev/null; then
    echo "this system does not let root mount (unshare --mount)"
  fi
}

# What this computer's apt reads a release from, or another release of the same distribution; else the default.
mirror_of() {  # mirror_of RELEASE DISTRIBUTION DEFAULT
  local found
  found=$(apt-get indextargets --format '$(RELEASE) $(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk -v release="$1" -v label="$2" '$1 == release { exact = $3 } $2 == label { other = $3 }
                                       END { print exact ? exact : other }') || true
  echo "${found:-$3}"
}

# Makes FOLDER the root of a release: minbase with git and certificates, and what this computer's apt knows of proxies,
# certificates and ages of lists. debootstrap takes proxies from the environment. What it mounts ends with it.
make_root() {  # make_root RELEASE FOLDER
  local mirror proxy http_proxy=${http_proxy:-} script=()
  local bootstrap=(unshare --mount --pid --fork --kill-child --mount-proc debootstrap --variant=minbase
                   --include=ca-certificates,git)
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  [[ -n $http_proxy || ${proxy:-DIRECT} == DIRECT ]] || http_proxy=$proxy
  [[ -z $http_proxy ]] || export http_proxy
  if [[ $1 == noble ]]; then
    local keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    mirror=$(mirror_of "$1" Ubuntu http://archive.ubuntu.com/ubuntu)
    if [[ -e $keyring ]]; then bootstrap+=(--keyring="$keyring"); else bootstrap+=(--no-check-gpg); fi
    [[ -e /usr/share/debootstrap/scripts/noble ]] || script=(/usr/share/debootstrap/scripts/gutsy)
    "${bootstrap[@]}" --components=main,universe "$1" "$2" "$mirror" "${script[@]}" || return 1
    echo "deb $mirror noble-updates main universe" >>"$2/etc/apt/sources.list"
  else
    mirror=$(mirror_of "$1" Debian http://deb.debian.org/debian)
    "${bootstrap[@]}" "$1" "$2" "$mirror" || return 1
  fi
  apt-config dump | grep -E '^Acquire::(http|https|Check-Date|Check-Valid-Until|Retries)(::[^ ]*)? "[^"]' \
    >"$2/etc/apt/apt.conf.d/90-as-outside" || true
  cp --dereference /etc/ssl/certs/ca-certificates.crt "$2/etc/ssl/certs/" || true  # a proxy may sign with its own
}

# Runs a command of bash in a root. Mounts and processes are in namespaces of their own and end with them, also where this
# shell is killed; from outside, nothing is ever mounted in the root.
in_root() {  # in_root FOLDER COMMAND
  unshare --mount --pid --fork --kill-child bash -euc '
    root=$1 command=$2
    shift 2
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount --rbind /dev "$root/dev"
    for bind; do
      IFS=: read -r source place mode <<<"$bind"
      [[ -e $source ]] || continue
      mkdir -p "$root$place"
      mount --bind "$source" "$root$place"
      [[ -z $mode ]] || mount -o "remount,bind,$mode" "$root$place"
    done
    cp --dereference /etc/resolv.conf "$root/etc/"
    exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin CCACHE_DIR=/var/cache/ccache \
      ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
      ${PIP_CERT:+PIP_CERT=/etc/ssl/certs/ca-certificates.crt} bash -euc "cd /src/tencache; $command"' \
    in-root "$1" "$2" "${binds[@]}"
}

# Removes a root; never what is mounted in it.
remove_root() {  # remove_root FOLDER
  local below
  below=$(awk -v root="$(realpath -m "$1")" '$5 == root || index($5, root "/") == 1 { print $5 }' /proc/self/mountinfo)
  [[ -z $below ]] || { printf '%s stays: mounted in it is %s\n' "$1" "${below//$'\n'/ }" >&2; return 1; }
  rm -rf --one-file-system "$1"
}
