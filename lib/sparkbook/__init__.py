"""The library behind the DGX Spark vLLM playbook."""
