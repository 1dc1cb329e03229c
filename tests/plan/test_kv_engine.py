"""The real vLLM on the CPU builds six invented models on dummy weights: its KV tokens have to be
the plan's.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from sparkbook.checkpoint.config import geometry
from sparkbook.plan.kv import Paging, cut
from sparkbook.serve import paths

_BASE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
SHAPES = {
    "gqa-untied": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "mha-tied": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "tie_word_embeddings": True,
        "num_hidden_layers": 6,
        "num_key_value_heads": 4,
    },
    "sliding-window": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 7,
        "sliding_window": 256,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "moe": {
        **_MOE,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "gated-deltanet": {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "full_attention_interval": 4,
        "tie_word_embeddings": True,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
    },
    "mla": {
        **_MOE,
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
}
CONTEXT, MEMORY = 4096, 64 * 2**20


@pytest.mark.engine
def test_the_engine_counts_the_tokens_that_the_plan_counts(tmp_path):
    for name, shape in SHAPES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**_BASE, **shape}))
    options = {"max_model_len": CONTEXT, "max_num_seqs": 4, "kv_cache_memory_bytes": MEMORY}
    run = subprocess.run(
        [
            str(paths.engine_python()),
            str(Path(__file__).with_name("engine_tokens.py")),
            json.dumps(options),
            *SHAPES,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        },
    )
    found = [
        json.loads(line.removeprefix("RESULT "))
        for line in run.stdout.splitlines()
        if line.startswith("RESULT ")
    ]
    assert [entry["folder"] for entry in found] == list(SHAPES), run.stderr[-2000:]
    for entry in found:
        assert "error" not in entry, entry
        caches = geometry({**_BASE, **SHAPES[entry["folder"]]}).caches
        # The CPU begins with blocks of 128 tokens, and 16 with MLA (0.32.0, platforms/cpu.py).
        block = 16 if any(cache.kind == "mla" for cache in caches) else 128
        pages = cut(
            caches, Paging(CONTEXT, batched=entry["batched"], batches=entry["batches"], block=block)
        )
        assert pages.tokens(MEMORY) == pytest.approx(entry["tokens"], rel=0.01), entry
        assert pages.concurrency(MEMORY) == pytest.approx(entry["concurrency"], rel=0.01), entry
