"""NVFP4 and FP8 kernels for one to sixteen tokens: a numpy reference, and the CUDA sources in
`kernels/`: built, loaded, checked, timed.

- `reference`: what each kernel computes, in numpy; the CPU path, and what the GPU is checked
  against
- `checkpoint`: reads NVFP4 layers out of a checkpoint, as the kernels take them
- `build`: finds nvcc, compiles a target, reads what came out
- `library`: the built library, on arrays that are on the GPU already (torch, CuPy, whatever has
  `__cuda_array_interface__`: `arrays`)
- `gb10`: what the compiler made of the kernels for the Spark, and how their launches fit it
- `torch_ops`: the same as operators of torch, for `torch.compile` and CUDA graphs; on the CPU they
  are the reference
- `instructions`, `weights24`, `triton_gemv`, `records`: the laboratory of chapter 14
- `marlin`: weights in the order of vLLM's Marlin
- `vllm_plugin`: the entry point through which vLLM finds the kernels, off unless asked for;
  `vllm_support`: whether they can be used there; `vllm_layers`: the choice inside vLLM's classes;
  `vllm_choice`: its measurements
- `selftest`, `bench`: what `sparkbook kernels test` and `sparkbook kernels bench` run; the checks
  are in `format_checks`, `product_checks`, `marlin_checks` and `caller_checks`, over `on_gpu`
"""
