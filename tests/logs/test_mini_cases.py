"""Cases with known answers, scored: a point for the primary finding, one for the fix, one for each
thing that must also be said, and one off for each thing that must not be said. Full marks are what
is asked for.
"""

import re
from dataclasses import dataclass, field

import pytest
from sparkbook import logs


@dataclass
class Case:
    """`primary`: kind of the primary fault, None for a healthy log. The other fields are patterns
    looked for in everything said.
    """

    name: str
    log: str
    primary: str | None
    fix: tuple[str, ...]
    facts: str = ""
    also: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    rule: str | None = None
    said: list[str] = field(default_factory=list)


def said(diagnosis):
    """What the doctor says; what other people reported (LOG908) is theirs."""
    own = (f for f in diagnosis.findings if f.rule != "LOG908")
    return "\n".join(f"{f.message} {f.fix or ''}" for f in own)


KV_SHORT = """\
INFO [gpu_worker.py] CUDA graph memory profiling is enabled (default since v0.21.0). The current
  --gpu-memory-utilization=0.8000 is equivalent to --gpu-memory-utilization=0.7580 without CUDA graph
  memory profiling. To maintain the same effective KV cache size as before, increase ... to 0.8420.
INFO [gpu_worker.py] Available KV cache memory: 22.5 GiB
ValueError: To serve at least one request with the model's max seq len (196608), (23.25 GiB KV cache is
  needed, which is larger than the available KV cache memory (22.5 GiB). Based on the available memory,
  the estimated maximum model length is 190272. Try increasing `gpu_memory_utilization` or decreasing ...
"""

HEALTHY = """\
UserWarning: Found GPU0 NVIDIA GB10 which is of cuda capability 12.1. Minimum and Maximum ... (8.0) - (12.0)
WARNING Unknown vLLM environment variable detected: VLLM_FLASHINFER_MOE_BACKEND
UserWarning: GDS is not supported in this platform but nogds is False. use nogds=True
Loading safetensors using Fastsafetensor loader: 100% Completed | 12/12 [00:48]
WARNING Your GPU does not have native support for FP4 computation but FP4 quantization is being used.
INFO [Autotuner]: SM121: skipping SM120 FP4 tile M=128 N=128 K_elem=256: exceeds SMEM limit
INFO shm_broadcast: No available shared memory broadcast block found in 60 seconds
WARNING CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode ...; setting cudagraph_mode=PIECEWISE
INFO Graph capturing finished in 19 secs, took 0.62 GiB
INFO: Application startup complete.
"POST /v1/chat/completions HTTP/1.1" 200 OK
"""

NEGATIVE = """\
INFO Model loading took 22.4 GiB memory and 88.120000 seconds
INFO Loading drafter model...
INFO Estimated CUDA graph memory: -35.69 GiB total
INFO Available KV cache memory: 93.33 GiB
INFO GPU KV cache size: 4,812,032 tokens, Maximum concurrency for 262,144 tokens per request: 18.36x
kernel: NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY]
"""

A = """\
ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'
   triton ... command: /opt/venv/.../triton/backends/nvidia/bin/ptxas -v --gpu-name=sm_121a
"""
B = (
    "torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported"
    " toolchain. (222)\n"
)
C = """\
ptxas error : Instruction 'cvt with .e2m1x2' not supported on .target 'sm_121'
   ninja: build stopped | env TORCH_CUDA_ARCH_LIST=12.1
"""

CASES = [
    Case(
        "3: KV short by 0.75 GiB",
        KV_SHORT,
        "kv-too-small",
        (
            r"--max-model-len 190272",
            r"--gpu-memory-utilization 0\.81 \(98\.52 GiB requested, 101\.4 available",
        ),
        facts="total: 121.63 GiB\nMemAvailable: 101.4\nkv_cache_dtype: fp8\nmax_num_seqs: 4",
        also=(r"KV cache about 23\.7 GiB", r"0\.842.{0,60}102\.4 GiB would fail"),
        never=(r"kv-cache-dtype fp8", r"--max-num-seqs", r"out of memory|\bOOM\b"),
    ),
    Case(
        "5A: assembler too old",
        A,
        "arch-ptxas",
        (r"TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas",),
        also=(r"newer Triton",),
        never=(r"driver", r"12\.1a", r"GB10 is not supported"),
    ),
    Case(
        "5B: toolkit newer than driver",
        B,
        "arch-ptx-driver",
        (r"update the driver",),
        also=(r"newer than the driver",),
        never=(r"TRITON_PTXAS_PATH=", r"12\.1a", r"GB10 is not supported"),
    ),
    Case(
        "5C: suffix missing",
        C,
        "arch-ptxas",
        (r"FLASHINFER_CUDA_ARCH_LIST=12\.1a", r"clear the JIT cache"),
        also=(r"suffix",),
        never=(r"TRITON_PTXAS_PATH", r"driver", r"GB10 is not supported"),
    ),
    Case(
        "7: healthy",
        HEALTHY,
        None,
        (r"--moe-backend",),
        also=(r"FP4 kernel is used",),
        never=(
            r"FP4 (?:is )?not work",
            r"GPU (?:is )?(?:un|not )supported",
            r"loader (?:is )?broken",
            r"speculation (?:is )?off|spec\w* decod\w* (?:is )?off",
        ),
    ),
    Case(
        "9: negative estimate",
        NEGATIVE,
        "uma-accounting",
        (r"--kv-cache-memory-bytes 40G", r"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0"),
        facts="total: 121.63\ngpu_memory_utilization: 0.70\nnon_torch_plus_activation: 5.10",
        also=(r"85\.14 - 22\.40 - 5\.10 \+ 35\.69 = 93\.33", r"120\.8 of 121\.6", r"57\.6 GiB"),
        never=(r"raise.{0,20}max-num-seqs", r"page cache of", r"plenty"),
    ),
    Case(
        "draft without quantization",
        "moe_backend='marlin' is not supported for unquantized MoE. Expected one of ['triton'",
        "spec-decode-load",
        (r'"moe_backend":"triton".{0,20}--speculative-config',),
        also=(r"BF16",),
    ),
    Case(
        "amd64 image on Arm",
        "exec /usr/bin/vllm: exec format error\nexec /usr/bin/vllm: exec format error\n",
        "arch-image",
        (r"arm64",),
        also=(r"restart",),
    ),
    Case(
        "exit 137 without a sender",
        "chat Exited (137) OOMKilled=false\nroot 612 /usr/bin/earlyoom -m 5\n",
        "killed-by-watchdog",
        (r"earlyoom",),
        also=(r"not in this log", r"Collect next"),
        never=(r"was killed for lack of memory",),
    ),
    Case(
        "memory not given back yet",
        '  File "gpu_worker.py", line 210, in init_device\n    self.init_snapshot ='
        " MemorySnapshot()\ntorch.AcceleratorError: CUDA error: out of memory (MemorySnapshot ->"
        " mem_get_info)",
        "orphan-memory",
        (r"MemAvailable has come back",),
        never=(r"(?<!don't )lower the fraction",),
    ),
    Case(
        "license not accepted",
        "OSError: Cannot access gated repo for url https://huggingface.co/x. 403 Client Error.",
        "gated-download",
        (r"Accept the license",),
        never=(r"401",),
    ),
    Case(
        "token missing",
        "OSError: You are trying to access a gated repo. 401 Client Error."
        " https://huggingface.co/x",
        "gated-download",
        (r"HF_TOKEN",),
        never=(r"403",),
    ),
    Case(
        "2: an orphan engine, not the network",
        "(Worker_TP1 pid=77) ERROR 11-28 10:00:01 [core.py:1] ValueError: Free memory on device"
        " cuda:0 (14.2/121.63 GiB) on startup is less than desired GPU memory utilization (0.85,"
        " 103.38 GiB).\n[rank0]:[W1128 10:00:09.100 TCPStore.cpp:106] [c10d] sendBytes failed on"
        " SocketImpl(fd=56): Broken pipe\n[rank0]:[E1128 10:00:19.100 ProcessGroupNCCL.cpp:1] NCCL"
        " error: unhandled system error\n(EngineCore pid=7) RuntimeError: Engine core"
        " initialization failed. See root cause above. Failed core proc(s): {}\n",
        "orphan-memory",
        (r"process 41218",),
        facts=(
            '{"processes": [{"name": "VLLM::EngineCore", "pid": 41218, "used": "104277 MiB"}],'
            ' "memory": {"MemTotal": "121.63 GiB"}}'
        ),
        also=(r"Consequence", r"104277 MiB"),
        never=(r"[Ll]ower --gpu-memory-utilization",),
    ),
]


def score(case):
    facts = logs.parse_facts(case.facts) if case.facts else None
    diagnosis = logs.diagnose(case.log, facts)
    text = said(diagnosis)
    kind = diagnosis.primary.kind if diagnosis.primary else None
    lost = []
    if kind != case.primary:
        lost.append(f"primary is {kind}")
    lost += [f"fix lacks {p}" for p in case.fix if not re.search(p, text)]
    lost += [f"does not say {p}" for p in case.also if not re.search(p, text)]
    lost += [f"says {p}" for p in case.never if re.search(p, text)]
    return lost, text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_full_marks(case):
    lost, text = score(case)
    assert not lost, f"{lost}\n{text}"


def test_one_wait_is_noise_and_three_are_not():
    line = (
        "INFO 11-28 10:0{}:00 [shm_broadcast.py:466] No available shared memory broadcast block"
        " found in 60 seconds."
    )
    one = logs.diagnose(line.format(1))
    assert one.verdict == "cut off" and one.findings[-1].kind == "benign-noise"
    three = logs.diagnose("\n".join(line.format(minute) for minute in range(4)))
    assert three.findings[0].kind == "multi-node-hang" and three.findings[0].severity == "warning"
    assert three.verdict == "stuck" and "4 times" in three.headline
    ready = "\nINFO:     Application startup complete."
    assert logs.diagnose("\n".join(line.format(m) for m in range(4)) + ready).healthy


def test_the_three_of_case_5_in_one_log_stay_three():
    kinds = {
        finding.rule: finding.kind for finding in logs.diagnose(A + "\n" + B + "\n" + C).findings
    }
    assert (
        kinds["LOG201"] == "arch-ptxas"
        and kinds["LOG203"] == "arch-ptx-driver"
        and kinds["LOG202"] == "arch-ptxas"
    )


@pytest.mark.parametrize(
    ("log", "rule", "quoted"),
    [
        (HEALTHY, "LOG603", "line 3: UserWarning: GDS is not"),
        (C, "LOG212", "line 2: ninja: build stopped"),
        (KV_SHORT, "LOG108", "line 5: ValueError"),
    ],
)
def test_the_evidence_is_the_line_that_holds_it(log, rule, quoted):
    found = {finding.rule: finding.evidence for finding in logs.diagnose(log).findings}
    assert rule in found and found[rule].startswith(quoted)
