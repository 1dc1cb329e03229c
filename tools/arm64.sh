#!/usr/bin/env bash
# Run a command on Arm, as a Spark is:   tools/arm64.sh COMMAND...
# Where this machine is no Arm machine, the command runs in a minimal Debian of that architecture, which is made at the first call and
# whose programs QEMU emulates (about ten times slower). As root. The command gets this environment and a copy of the project's files;
# the environments that it makes there (.venv) are kept for the next call.
#   ARM64_ROOT   where the Debian lies; to make it anew: rm -r it
set -euo pipefail
cd "$(dirname "$0")/.."
root=${ARM64_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/sparkbook/arm64}
release=bookworm
packages=ca-certificates,make,python3,python3-venv
say() { printf '[arm64] %s\n' "$*" >&2; }
die() { printf '[arm64] error: %s\n' "$*" >&2; exit 1; }

(($#)) || die "usage: tools/arm64.sh COMMAND..."
[ "$(uname -m)" != aarch64 ] || exec "$@"
((EUID == 0)) || die "needs root, to make another Debian and to enter it"
export PATH=$PATH:/usr/sbin:/sbin

emulator() {
  local missing=()
  for of in debootstrap:debootstrap qemu-aarch64-static:qemu-user-static update-binfmts:binfmt-support; do
    command -v "${of%%:*}" >/dev/null || missing+=("${of##*:}")
  done
  ((${#missing[@]} == 0)) || die "not installed here: apt-get install ${missing[*]}"
  local formats=/proc/sys/fs/binfmt_misc
  [ -e $formats/register ] || mount -t binfmt_misc binfmt_misc $formats || die "this kernel runs no programs of other processors (binfmt_misc)"
  [ -e $formats/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64 || die "QEMU can't be registered for Arm's programs (update-binfmts)"
}

# The stamp comes last, and says of what: a Debian that was interrupted, or has other packages, is made anew.
debian() {
  [ "$(cat "$root/.complete" 2>/dev/null)" != "$release $packages" ] || return 0
  say "making a Debian for Arm in $root (a few minutes)"
  rm -rf "$root"; mkdir -p "$root"
  # From the mirror and by the proxy that apt uses here; else from debootstrap's own.
  local mirror proxy=
  mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null | sed -n "s/^$release //p" | head -1)
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  http_proxy=${http_proxy:-$proxy} debootstrap --arch=arm64 --variant=minbase --include="$packages" "$release" "$root" ${mirror:+"$mirror"} \
    >"$root.log" 2>&1 || { tail -5 "$root.log" >&2; die "debootstrap failed; all that it said is in $root.log"; }
  echo "$release $packages" >"$root/.complete"
}

# How this machine reaches package registries is its own matter: its configuration goes along.
project() {
  local configuration=(/etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt /etc/pip.conf /etc/xdg/pip /etc/uv
    "$HOME/.config/pip" "$HOME/.config/uv" "$HOME/.pip")
  for place in "${configuration[@]}"; do
    [ ! -e "$place" ] || { mkdir -p "$root$(dirname "${place/#$HOME//root}")"; cp -rLT "$place" "$root${place/#$HOME//root}"; }
  done
  mkdir -p "$root/root/project"
  find "$root/root/project" -mindepth 1 -maxdepth 1 ! -name '.venv*' -exec rm -r {} +
  git ls-files -z --cached --others --exclude-standard | tar c --null --ignore-failed-read --exclude=".venv*" -T - 2>/dev/null | tar x -C "$root/root/project"
}

mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"; flock -n 9 || { say "waiting for another call to end"; flock 9; }
emulator; debian; project
# In namespaces of its own, so that nothing stays mounted and nothing keeps running, however it ends. Their first process is this machine's
# shell: an emulated one would forget that it has to end with this script. The command has a session of its own: what it says to its process
# group is for nobody out here.
export root EMULATED=qemu
exec env -u PYTHONPATH -u PYTHONHOME -u VIRTUAL_ENV -u TMPDIR -u XDG_CACHE_HOME -u XDG_CONFIG_HOME -u LD_LIBRARY_PATH \
  unshare --mount --pid --fork --kill-child bash -euc '
  mount -t proc proc "$root/proc"
  for at in sys dev dev/pts dev/shm; do mount --bind "/$at" "$root/$at"; done
  HOME=/root PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin setsid --wait chroot "$root" bash -c "cd /root/project && exec \"\$@\"" bash "$@" || exit $?' bash "$@"
