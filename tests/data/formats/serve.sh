export VLLM_LOGGING_LEVEL=INFO
MODEL=example/Orchid-8B-NVFP4
pip install scipy &&
HF_HOME=/models python3 -m vllm.entrypoints.openai.api_server --model $MODEL -tp 1 --max_model_len=32768 --port 8000
