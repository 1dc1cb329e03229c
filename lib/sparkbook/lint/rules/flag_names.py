"""Options that are not in this release of vLLM: renamed, removed, or of another program."""

SUCCESSORS = {
    "speculative-disable-by-batch-size": (
        "the key num_speculative_tokens_per_batch_size of --speculative-config (0.24 and later), or"
        " fewer draft tokens"
    ),
    "num-scheduler-steps": "nothing: the engine schedules by itself",
    "swap-space": "nothing: requests are recomputed, not swapped",
    "speculative-model": "--speculative-config '{\"model\": …}'",
    "num-speculative-tokens": "--speculative-config '{\"num_speculative_tokens\": …}'",
    "guided-decoding-backend": "--structured-outputs-config '{\"backend\": …}'",
    "enable-reasoning": "nothing: --reasoning-parser alone switches it on",
    "rope-scaling": "--hf-overrides '{\"rope_parameters\": …}'",
    "rope-theta": "--hf-overrides '{\"rope_theta\": …}'",
    "cuda-graph-sizes": "--cudagraph-capture-sizes",
    "use-v2-block-manager": "nothing: there is one block manager",
    "task": "--runner and --convert",
    "disable-log-requests": (
        "nothing: requests are not logged unless --enable-log-requests is given"
    ),
    "override-pooler-config": "--pooler-config",
    "preemption-mode": "nothing: requests are recomputed",
    "enable-prompt-adapter": "nothing",
    "device": "nothing: the platform is found by itself",
    "max-seq-len-to-capture": "--max-cudagraph-capture-size",
    "worker-use-ray": "--distributed-executor-backend ray",
    "engine-use-ray": "--distributed-executor-backend ray",
    "num-lookahead-slots": "nothing",
    "lora-extra-vocab-size": "nothing",
}
"""Options that old releases had, some before the table starts, and what replaces them."""

FOREIGN = {
    **dict.fromkeys(
        (
            "gpus",
            "ipc",
            "shm-size",
            "runtime",
            "ulimit",
            "network",
            "restart",
            "volume",
            "publish",
            "env",
            "name",
            "privileged",
            "entrypoint",
            "detach",
            "rm",
        ),
        "docker, and belongs before the image",
    ),
    **dict.fromkeys(
        (
            "cache-type-k",
            "cache-type-v",
            "n-gpu-layers",
            "ctx-size",
            "flash-attn",
            "no-mmap",
            "jinja",
        ),
        "llama.cpp",
    ),
    **dict.fromkeys(
        ("mem-fraction-static", "context-length", "model-path", "tp-size", "chunked-prefill-size"),
        "SGLang",
    ),
    **dict.fromkeys(
        ("solo", "tf5", "download-model", "setup", "launch-script"),
        "the scripts of spark-vllm-docker",
    ),
    **dict.fromkeys(("local-dir", "repo-type", "include"), "the hf command"),
}
"""Options of other programs that are found after `vllm serve`, and whose they are."""

_B12X = "the builds with b12x kernels (https://github.com/eugr/spark-vllm-docker)"
OF_FORKS = {
    "gdn-decode-kernel": _B12X,
    "gpu-memory-utilization-gb": "eugr's builds with the mod gpu-mem-util-gb",
    "mxfp4-backend": "eugr's builds for MXFP4",
    "mxfp4-layers": "eugr's builds for MXFP4",
}
"""Options of builds of vLLM that no release has, and which builds have them."""
