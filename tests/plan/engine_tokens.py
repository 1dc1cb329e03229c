"""Run by the engine's Python: builds a real CPU engine on dummy weights for each folder and prints
the KV tokens that it comes to.

python engine_tokens.py OPTIONS-AS-JSON FOLDER...
"""

import gc
import json
import sys

from vllm import LLM

options = json.loads(sys.argv[1])
for folder in sys.argv[2:]:
    try:
        engine = LLM(
            model=folder,
            load_format="dummy",
            enforce_eager=True,
            skip_tokenizer_init=True,
            **options,
        )
        config = engine.llm_engine.vllm_config
        found = {
            "tokens": config.cache_config.kv_cache_size_tokens,
            "concurrency": config.cache_config.kv_cache_max_concurrency,
            "batched": config.scheduler_config.max_num_batched_tokens,
            "batches": config.max_concurrent_batches,
            "block": config.cache_config.block_size,
        }
        del engine
        gc.collect()
    except Exception as error:  # noqa: BLE001 (told to the test)
        found = {"error": f"{type(error).__name__}: {error}"[:300]}
    print("RESULT", json.dumps({"folder": folder, **found}), flush=True)
