#!/usr/bin/env bash
# Records what `sparkbook check --cluster` finds between two network namespaces of this machine, as they are and with a slow cable:
# lib/sparkbook/cluster/recorded/*.json. Needs root, iproute2, .venv and .venv-engine; leaves nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
one=spark-rec-a two=spark-rec-b
clean() {
  for name in "$one" "$two"; do
    ip netns pids "$name" 2>/dev/null | xargs -r kill -9 || true
    ip netns del "$name" 2>/dev/null || true
  done
  rm -r "$work"
}
trap clean EXIT
ip netns add "$one"
ip netns add "$two"
ip link add spark-a netns "$one" type veth peer name spark-b netns "$two"
for of in "$one:spark-a:1" "$two:spark-b:2"; do
  IFS=: read -r name end number <<<"$of"
  ip -n "$name" link set lo up
  ip -n "$name" addr add "10.79.0.$number/24" dev "$end"
  ip -n "$name" link set "$end" up
done
# An end is up a moment after it was set so: seen earlier, it is recorded as a cable that hangs loose.
for of in "$one:spark-a" "$two:spark-b"; do
  for _ in $(seq 50); do
    ip -n "${of%:*}" link show "${of#*:}" | grep -q "state UP" && break
    sleep 0.1
  done
done
cat >"$work/pair.yaml" <<YAML
name: two-namespaces
link_gbit: 10
nodes:
  - {host: spark-a, address: 10.79.0.1}
  - {host: spark-b, address: 10.79.0.2, via: [ip, netns, exec, $two]}
YAML
record() {
  ip netns exec "$one" .venv/bin/sparkbook check --cluster "$work/pair.yaml" --json >"$work/told.json" || true
  .venv/bin/python - "$work" "lib/sparkbook/cluster/recorded/$1.json" <<'PY'
import json, sys, yaml
from pathlib import Path
work, to = map(Path, sys.argv[1:])
told = json.loads((work / "told.json").read_text())
for node in told["nodes"]:
    node |= {"kernel": None, "available_kb": None}  # of the machine that happened to record
kept = {"inventory": yaml.safe_load((work / "pair.yaml").read_text()), "nodes": told["nodes"], "pairs": told["pairs"]}
to.parent.mkdir(exist_ok=True)
to.write_text(json.dumps(kept, indent=1) + "\n")
PY
}
record two-namespaces
ip netns exec "$one" tc qdisc add dev spark-a root tbf rate 200mbit burst 64kb latency 50ms
record two-namespaces-slow
