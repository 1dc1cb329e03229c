#!/usr/bin/env bash
# Make one of the project's two environments, or install the command alone:   tools/setup.sh book|engine|install
#   book    .venv          the library, the notebooks' kernel, the site and the tests   (requirements.txt)
#   engine  .venv-engine   vLLM's CPU build, in its own place since its pins differ     (requirements-torch.txt, requirements-engine.txt)
#   install                `sparkbook` on the PATH, without vLLM and Jupyter             (pyproject.toml)
# PYTHON chooses the interpreter (3.11 or newer). Run again it repairs or updates what is there.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export UV_COMPILE_BYTECODE=${UV_COMPILE_BYTECODE:-1}
say() { printf '[setup] %s\n' "$*" >&2; }
die() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

command -v "$PYTHON" >/dev/null || die "no '$PYTHON' found; install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "$("$PYTHON" --version) is too old; Python 3.11 or newer is needed: make PYTHON=/path/to/python3"

# uv installs four times faster than pip and compiles bytecode in parallel; it lives in the book's environment.
uv_in_book() {
  [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null || {
    rm -rf .venv
    "$PYTHON" -m venv .venv 2>.setup-error || {
      cat .setup-error >&2; rm -rf .venv .setup-error
      die "'$PYTHON -m venv' failed; on Debian and Ubuntu: sudo apt-get install python3-venv"
    }
    rm -f .setup-error
  }
  local want; want=$(sed -n '/^uv==/,/[^\\]$/p' requirements.txt)  # with its hashes
  [ "uv==$(.venv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" = "${want%% *}" ] ||
    .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r <(echo "$want")
}

book() {
  say "book environment: .venv"
  uv_in_book
  .venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes -r requirements.txt
  .venv/bin/uv pip install --quiet --no-deps --no-build-isolation --python .venv/bin/python -e .
}

engine() {
  say "engine environment: .venv-engine (about 2.5 GB; a minute on a good line)"
  uv_in_book
  [ "$(uname -s)" = Linux ] || die "the embedded engine needs Linux; 'make book TARGET=plan' builds the book without it"
  ldconfig -p 2>/dev/null | grep -q libnuma.so.1 || [ -n "$(find /lib /usr/lib -name 'libnuma.so.1' -print -quit 2>/dev/null)" ] ||
    die "libnuma.so.1 is missing, which vLLM's CPU build loads; on Debian and Ubuntu: sudo apt-get install libnuma1"
  [ -x .venv-engine/bin/python ] && .venv-engine/bin/python -c '' 2>/dev/null || { rm -rf .venv-engine; "$PYTHON" -m venv --without-pip .venv-engine; }
  # The CPU build of torch: from wherever pip is told to look (a wheel folder on disk, say), else the PyTorch project's own CPU index.
  local links=() backend=(--torch-backend cpu) left_out=
  while read -r place; do
    compgen -G "$place/torch-2.13.0+cpu-*.whl" >/dev/null && links=(--find-links "$place") backend=() left_out='/^torchvision/,$d'
  done < <(.venv/bin/pip config list 2>/dev/null | sed -n "s/.*find-links='\(.*\)'/\1/p" | tr ' ' '\n')
  local into=(--quiet --no-deps --python .venv-engine/bin/python)
  sed "$left_out" requirements-torch.txt | .venv/bin/uv pip install "${into[@]}" "${links[@]}" "${backend[@]}" --require-hashes -r -
  .venv/bin/uv pip install "${into[@]}" --require-hashes -r requirements-engine.txt
  .venv-engine/bin/python tools/repair_engine.py
}

install() {
  rm -rf build  # setuptools would pack the modules of an earlier build as well
  local uv; uv=$(command -v uv || { [ -x .venv/bin/uv ] && echo .venv/bin/uv; } || true)
  if [ -n "$uv" ]; then
    "$uv" tool install --quiet --force --reinstall-package sparkbook --python "$(command -v "$PYTHON")" .
  elif command -v pipx >/dev/null; then
    pipx install --quiet --force --python "$PYTHON" .
  else
    die "uv or pipx is needed to install the command; on Debian and Ubuntu: sudo apt-get install pipx"
  fi
  rm -rf build
  if command -v sparkbook >/dev/null; then
    say "installed: sparkbook ($(command -v sparkbook)). Try: sparkbook recipes list"
  else
    say "installed, but its folder is not on your PATH. Run: $([ -n "$uv" ] && echo "$uv tool update-shell" || echo pipx ensurepath)"
  fi
}

case "${1:-}" in
  book | engine | install) "$1" ;;
  *) die "usage: tools/setup.sh book|engine|install" ;;
esac
