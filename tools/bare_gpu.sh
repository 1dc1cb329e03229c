#!/usr/bin/env bash
# Makes a machine with two NVIDIA GPUs, Python 3.12, PyTorch and no network ready for tools/measure_links.py.
#   tools/bare_gpu.sh pack OUT                 here: what such a machine lacks (50 MB): Debian's ip, tc and iptables, this package's
#                                              dependencies, Ray, and the shapes of a dense 8B and of a 30B-A3B without weights
#   tools/bare_gpu.sh unpack OUT VLLM ENGINE   there, as root: VLLM is the folder of an unpacked GPU build of vLLM, in `v` and `site`.
#                                              Prints the lines to run next.
set -euo pipefail
cd "$(dirname "$0")/.."
verb=$1 out=$(realpath -m "$2")
if [ "$verb" = pack ]; then
  mkdir -p "$out/debs" "$out/shapes" && rm -rf "$out/shapes"/*
  (cd "$out/debs" && apt-get download iproute2 iptables libbpf1 libelf1 libmnl0 libxtables12 libnftnl11 libip4tc2 libip6tc2)
  work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
  .venv/bin/python -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))' |
    grep -v numpy >"$work/wanted"
  python3 -m pip install --quiet --no-compile --target "$work/packages" --python-version 3.12 --only-binary=:all: \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -r "$work/wanted"
  # Ray for `--backend ray`, without its dashboard, its Java and the libraries on top of it.
  python3 -m pip install --quiet --no-compile --no-deps --target "$work/packages" --python-version 3.12 --only-binary=:all: \
    --platform manylinux2014_x86_64 ray
  rm -rf "$work"/packages/ray/{jars,rllib,llm,serve,data,tune,train,cpp,dashboard/client}
  tar -C "$work" -c packages | xz -T0 >"$out/packages.tar.xz"
  smollm2=$(.venv/bin/python -c 'from sparkbook.serve import smollm2; print(smollm2.ensure())')
  PYTHONPATH=lib:tools .venv-engine/bin/python - "$smollm2" "$out/shapes" <<'PY'
import sys
from pathlib import Path
from make_nvfp4_models import COMMON, SHAPES, write
for name, shape in SHAPES.items():
    write(Path(sys.argv[2]) / name, Path(sys.argv[1]), COMMON | shape, None, "modelopt")
PY
  du -sh "$out"
  exit
fi
vllm=$(realpath "$3") engine=$(realpath -m "$4")
mkdir -p "$engine/bin" "$engine/net"
for deb in "$out"/debs/*.deb; do dpkg -x "$deb" "$engine/net"; done
xz -dc "$out/packages.tar.xz" | tar -C "$engine" -x
mkdir -p "$engine/ray" && mv "$engine"/packages/ray* "$engine/ray/" # apart: the engine must not see this package's dependencies
paths=$engine/net/usr/lib/x86_64-linux-gnu:$engine/net/lib/x86_64-linux-gnu
for name in python vllm ray; do
  case $name in vllm) module="-m vllm.entrypoints.cli.main" ;; ray) module="-m ray.scripts.scripts" ;; *) module= ;; esac
  printf '#!/bin/sh\nPYTHONPATH=%s/v:%s/site:%s/ray exec %s %s "$@"\n' "$vllm" "$vllm" "$engine" "$(command -v python3)" "$module" >"$engine/bin/$name"
  chmod +x "$engine/bin/$name"
done
cat <<EOF
export PATH=$engine/net/sbin:$engine/net/usr/sbin:$engine/net/bin:\$PATH LD_LIBRARY_PATH=$paths
export PYTHONPATH=$PWD/lib:$engine/packages SPARKBOOK_ENGINE_PYTHON=$engine/bin/python
# each call keeps what it has at any moment, and the next one goes on where it was cut off:
python3 tools/measure_links.py measure "\$OUT" 8b 30b --models $out/shapes --minutes 9
EOF
