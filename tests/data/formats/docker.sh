#!/usr/bin/env bash
# A script as they are passed around: exports, defaults, an array, a helper container, a here-document.
set -euo pipefail
export HF_HOME=/models
PORT=${PORT:-9000}
IMAGE="vllm/vllm-openai:v0.28.0"
FLAGS=(--max-model-len 32768 --chat-template "/models/a b.jinja")
cat > /tmp/prompt.json <<JSON
{"model": "orchid", "docker": "docker run nothing"}
JSON
docker rm -f orchid >/dev/null 2>&1 || true
docker run -d --name redis redis:7
if ! docker container run -d --name orchid --gpus all --ipc=host --restart on-failure:3 \
    -p "127.0.0.1:${PORT}:8000" -v ~/models:/models:ro -e HF_HOME="$HF_HOME" -e HF_TOKEN --cap-add IPC_LOCK \
    "$IMAGE" example/Orchid-8B-NVFP4 "${FLAGS[@]}" --port 8000; then
  echo failed
fi
curl -s localhost:$PORT/health
