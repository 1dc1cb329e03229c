"""Each form of the vocabularies is in its primary source: in what its program prints when it is run
here, or in the texts of its source or binary. What can't be had here is in ELSEWHERE, with why.

CUDA's names are held to NVIDIA's headers by test_vocabulary.py. Of the kernel, NCCL, Ray, vLLM and
the API's clients no program is at hand here; the list of Xid numbers is only on NVIDIA's page.
"""

import argparse
import contextlib
import errno
import glob
import http
import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
import urllib.error
from pathlib import Path

import pytest
import requests
from sparkbook.logs.vocabulary import vocabularies

RULES = {rule.name: rule for rule in vocabularies()}
CUT = re.compile(
    r"…|\{[a-z]\w*\}|'[\w.-]+'|\*\*\*|[\"'`()\[\]{}<>=$]|: |:$|, |/(?=[A-Z])|(?<![\w.-])-?\d[\d.]*\b"
    r"|\blib[\w-]+\.so[.\d]*|[\w/]+\.h\b|-l\w+|[\w-]+(?=: (?:command )?not found)"
)
"""Where a form is cut: at what it leaves open, at names of files and programs, and where programs
put a value or join two texts.
"""


def pieces(form):
    """The parts of a form that its program has as one text, but those that are too short."""
    parts = [part.strip(" .,;:-#") for part in CUT.split(form)]
    return [p.lower() for p in parts if " " in p or len(p) > 9] or [max(parts, key=len).lower()]


def package(*names):
    """The source of installed packages, and their extensions' strings."""
    files = []
    for name in names:
        spec = importlib.util.find_spec(name)
        for place in map(Path, spec.submodule_search_locations or [spec.origin]):
            files += sorted(place.rglob("*")) if place.is_dir() else [place]
    text = "\n".join(f.read_text("latin-1") for f in files if f.suffix in {".py", ".so"})
    # a text that goes over two lines of source is one text
    text = re.sub(r"\"\s*\n\s*[fr]*\"|'\s*\n\s*[fr]*'|\\\n\s*", "", text)
    return re.sub(r"\s+", " ", text)


def binaries(*names, shortest=6):
    """The texts in programs and libraries; a test is skipped where one of them is missing."""
    found = []
    for name in names:
        paths = [shutil.which(name)] if shutil.which(name) else glob.glob(name)  # noqa: PTH207
        if not paths:
            pytest.skip(f"no {name} here")
        found += [Path(path).read_bytes() for path in paths]
    runs = re.findall(rb"[\t\n -~]{%d,}" % shortest, b"\0".join(found))
    return b"\n".join(runs).decode()


def printed(*words):
    """What a command prints, on both channels, in English."""
    environment = {**os.environ, "LC_ALL": "C", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    said = f"{done.stdout} {done.stderr} exit code {done.returncode}"
    return " ".join(said.split())


def raised(*sources):
    """The last lines of the tracebacks of some code."""
    lines = []
    for source in sources:
        with pytest.raises(BaseException) as error:
            exec(source, {"__name__": "x"})
        lines += traceback.format_exception_only(error.value)
    return "".join(lines)


def system():
    assert "exit code 127" in printed("bash", "-c", "nosuchprogram")
    assert "exit code 126" in printed("bash", "-c", "/")
    texts = [
        *(f"[Errno {number}] {os.strerror(number)}" for number in errno.errorcode),
        *errno.errorcode.values(),
        *signal.Signals.__members__,
        *(signal.strsignal(number) or "" for number in signal.valid_signals()),
        *(printed("bash", "-c", line) for line in ("nosuchprogram", "echo 'a", "( ;")),
        *(
            printed(sys.executable, "-X", "faulthandler", "-c", f"import os, threading; {line}")
            for line in (
                "os.kill(os.getpid(), 11)",
                "os.abort()",
                "threading.stack_size(1 << 46); threading.Thread(target=print).start()",
            )
        ),
        raised(
            "import ctypes; ctypes.CDLL('libnosuch.so.1')",
            "open('/nosuch/file')",
            "raise PermissionError(13, 'Permission denied', 'x')",
            "raise MemoryError",
        ),
        package("asyncio"),
        binaries(
            "bash", "dash", "env", "/lib*/ld-linux-*.so.*", "/lib/*-linux-gnu/libc.so.6",
            "/usr/lib/*-linux-gnu/libstdc++.so.6",
        ),
    ]  # fmt: skip
    return "\n".join(texts)


def systemd():
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd here")
    table = re.findall(r"([A-Z]+) (\d+) [a-zA-Z]+", printed("systemd-analyze", "exit-status"))
    statuses = [f"status={number}/{name} Failed at step {name}" for name, number in table]
    signals = [
        f"code={code}, status={one.value}/{one.name.removeprefix('SIG')}"
        for one in signal.Signals
        for code in ("killed", "dumped")
    ]
    errors = [os.strerror(number) for number in errno.errorcode]
    files = binaries("/usr/lib/*/systemd/libsystemd-*.so", "systemctl", "journalctl")
    return "\n".join([*statuses, *signals, *errors, files])


def python():
    return raised(
        "import nosuch",
        "import importlib.metadata as m; raise m.PackageNotFoundError('vllm')",
        "from os import nosuch",
        "import os; os.nosuch",
        "import sys, types; m = sys.modules['half'] = types.ModuleType('half');"
        " m.__file__ = 'half.py'; m.__spec__ = type('S', (), {'_initializing': True, 'name': 'half'})(); from half import x",
        "(lambda: 0)(key=1)",
        "(lambda a: 0)()",
        "def f(*, a): 0\nf()",
        "(lambda: 0)(1)",
        "(lambda a, b=1: 0)(1, 2, 3)",
        "{}.nosuch",
        "None.nosuch",
        "x = None; x[0]",
        "iter(None)",
        "x = None; x()",
        "int.nosuch",
        "type('XConfig', (), {})().nosuch",
        "{}['language_model.x']",
        "{}[0]",
        "def f(): f()\nf()",
        "b'\\xff'.decode()",
        "import json; json.loads('')",
        "import json; json.loads('{')",
        "import pydantic; pydantic.create_model('M', a=(int, ...), b=(int, ...))(a='x')",
        "import pydantic; pydantic.create_model('M', a=(int, ...))()",
        "import queue; queue.Queue().get_nowait()",
        "import _queue; _queue.SimpleQueue().get_nowait()",
        "import pickle; pickle.loads(b'')",
        "[][0]",
        "()[0]",
        "1 / 0",
        "def f():\n  x\n  x = 1\nf()",
        "nosuch",
        "next(iter(()))",
        "raise SystemExit(1)",
        "raise KeyboardInterrupt",
        "raise NotImplementedError",
        "assert False",
        "from concurrent.futures.process import BrokenProcessPool as E; raise E('x')",
        "raise TimeoutError('Timed out waiting for x')",
    ) + package("multiprocessing", "concurrent")


def pip():
    refused = printed(sys.executable, "-m", "pip", "install", "--no-index", "nosuchpackage")
    assert "No matching distribution found for nosuchpackage" in refused
    return "\n".join(
        [
            refused,
            package("_ssl"),
            package("pip"),
            binaries(
                f"{Path(sys.executable).parent}/uv", "git", "apt-get", "dpkg", "patch",
                "/usr/lib/*/libapt-p*.so.*", "/usr/lib/git-core/git-remote-http",
                "/usr/lib/*/libcrypto.so.*",
            ),
        ]
    )  # fmt: skip


def hub():
    texts = [package("huggingface_hub", "hf_xet", "httpx", "urllib3", "requests")]
    for status in http.HTTPStatus:
        answer = requests.Response()
        answer.status_code, answer.reason, answer.url = status.value, status.phrase, "x"
        try:
            answer.raise_for_status()
        except requests.HTTPError as error:
            texts += [str(error), f"{urllib.error.HTTPError('x', status, 'y', {}, None)}"]
    texts += [
        f"{module}.{name}"
        for module in ("httpx", "requests.exceptions", "_pickle")
        for name in vars(importlib.import_module(module))
    ]
    return "\n".join(texts)


def commands():
    parser = argparse.ArgumentParser(prog="vllm serve")
    parser.add_argument("--one", type=int)
    parser.add_argument("--only", choices=["a"])
    parser.add_argument("--many", nargs="+")
    parser.add_argument("model")
    said = io.StringIO()
    for words in ("m --nosuch", "m --only b", "m --one", "m --many", "", "m --one x", "m --on a"):
        with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
            parser.parse_args(words.split())
        assert ended.value.code == 2
    return said.getvalue() + package("click", "pydantic", "pydantic_core")


PTX = ".version 8.8 .target sm_121 .address_size 64 .extern .func f(); .visible .entry k() { %s ret; }"


def compilers():
    program = "echo 'int nosuch(); int main() { return nosuch(); }' | gcc -xc - -o /dev/null"
    linked = printed("bash", "-c", program)
    assert "undefined reference to `nosuch'" in linked
    nvidia = Path(importlib.util.find_spec("nvidia").submodule_search_locations[0])
    nvcc, ptxas = (str(next(nvidia.glob(f"*/bin/{name}"))) for name in ("nvcc", "ptxas"))
    return "\n".join(
        [
            linked,
            printed("bash", "-c", f"{program} -lnosuch"),
            printed("bash", "-c", "echo '#include <Python.h> // no' | gcc -xc -E -nostdinc -"),
            printed("bash", "-c", "nvcc-nosuch"),
            printed(nvcc, "-arch=sm_1", "--dryrun", "x.cu"),
            printed(nvcc, "--nosuch"),
            printed(ptxas, "-arch", "sm_1", "x"),
            *(
                printed("bash", "-c", f"echo '{PTX % line}' | {ptxas} -arch=sm_121 - -o /dev/null")
                for line in (
                    "call.uni f, ();",
                    "nosuch.u32;",
                    ".shared .align 4 .b8 s[1000000];",
                )
            ),
            binaries(nvcc, ptxas, "gcc", "ld", f"{nvidia}/*/include/crt/host_config.h"),
        ]
    )


def docker():
    # Go keeps its texts in one piece
    return binaries("docker", "dockerd", "containerd", "runc", shortest=30)


SOURCES = {
    "loader-shell-errno": system,
    "systemd": systemd,
    "docker": docker,
    "python": python,
    "pip-and-uv": pip,
    "http-and-hub": hub,
    "command-lines": commands,
    "compilers": compilers,
}
MARKS = {
    "docker": [pytest.mark.docker, pytest.mark.slow],
    "pip-and-uv": [pytest.mark.slow],
    "http-and-hub": [pytest.mark.slow],
    "compilers": [pytest.mark.nvcc],
}
ELSEWHERE = {
    "loader-shell-errno": {
        "Docker's client, which has its own vocabulary": "executable file not found|is not a docker|in -d$",
        "emulators": "rosetta|qemu",
        "a file with the line ends of Windows": r"\^M",
        "vLLM's and abseil's handlers of signals": "Segfault encountered|SIGSEGV",
        "PyTorch, OpenBLAS, OpenMP, Ray": "DefaultCPUAllocator|OpenBLAS|libgomp|^pthread_create|^mmap",
        "curl, Node, macOS and Windows": "resolve host|EAI_AGAIN|getaddrinfo failed|nodename",
        "uvloop": "could not bind on any",
    },
    "docker": {
        "NVIDIA's images and its container toolkit, in no registry of packages": (
            "NVIDIA|nvidia|unsatisfied condition|driver (rpc )?error|driver not loaded|load library"
            "|compatibility mode|CDI --device"
        ),
        "a Docker newer than Debian's 20.10": (
            "CDI|docker API|runtime name|prestart hook|specified platform|BaseImage|host port"
            "|create task|container networking|non-overlapping"
        ),
        "what a registry or the system answers, with values": (
            "pull rate limit|manifest for linux|tcp4|/var/(run|lib)/docker"
        ),
        "Docker Desktop": "ports are not available",
        "the plug-ins compose and buildx": (
            "exited with code|dependency failed|build context|refers to|variable is not set"
            "|no configuration file|did not complete"
        ),
        "Kubernetes": "BackOff|Back-off|ErrImagePull|nvidia.com/gpu|nodes are available|probe",
    },
    "python": {
        "PyTorch": (
            "[Tt]ensor|scalar type|same dtype|mixed dtype|mat1|input of size|size mismatch|same reduction"
            "|CUDA|OutOfMemory|Could not run|Dimension out|torchvision|C\\+\\+ ops"
        ),
        "transformers": "transformers|rope_(scaling|parameters)",
        "NumPy, Numba and OpenCV built for another NumPy or system": "[Nn]um[Pp]y|libGL",
        "pyzmq": "zmq",
        "Python before 3.11": "asyncio.exceptions",
    },
    "pip-and-uv": {
        "uv puts it together: `no wheels with a matching`, `are unsatisfiable`": (
            "no wheels|requirements are|on Linux|satisfy Python"
        ),
        "a pip newer than Debian's and Python 3.11's": "incomplete-download",
        "Go's standard library, in Docker's binaries": "x509",
        "conda": "PackagesNotFound|Unsatisfiable",
        "apt, git and its transport fill in a path, a branch, a name or a number": (
            "dpkg/lock|upstream origin|read Username|RPC failed"
        ),
        "Git LFS": "lfs|batch response|downloading object",
        "build scripts of packages": "flash_attn|setuptools.scm",
    },
    "http-and-hub": {
        "what the Hub, or a server before it, answers": (
            "authenticated|Please log in|awaiting|Invalid rev|rate limit your IP|Gateway Time-out"
        ),
        "transformers": (
            "find them in the cached|path_or_model_id|appear to have|Can't load|Unrecognized model"
            "|local folder|correct path"
        ),
        "diffusers": "is not cached locally",
        "safetensors": "[Dd]eserializ|Metadata|HeaderTooLarge|safetensors",
        "PyTorch": "PytorchStreamReader|magic number|Weights only",
        "hf_xet before 1.2, hf_transfer before huggingface_hub 1.0": "CAS|Data processing|hf_transfer",
        "urllib3 before 2": "Cannot connect to proxy",
    },
    "compilers": {
        "a path that the shell names, or a name that gcc and nvcc fill in": (
            "/bin/nvcc|nvcc error|Killed signal"
        ),
        "PyTorch and Triton": (
            "CUDA_HOME|cuda_home|cuda_utils|triton_launcher|find (nvcc|CUDA)|Triton|PTXAS|`ptxas`"
            "|^ptxas failed|C compiler|[Nn]inja|extension|Inductor|Backend|dynamo|Lowering"
            "|out of resource|Compilation|UnsupportedLanguage|mismatches"
        ),
        "FlashInfer and DeepGEMM": "[Ff]lash[Ii]nfer|JIT",
        "CMake": "C[Mm]ake|CMAKE|CUDA arch",
        "LLVM": "LLVM|recognized processor",
        "CCCL, which comes with CUDA": "toolkit headers",
    },
    "command-lines": {
        "vLLM": "max_model_len|keyword arguments passed|argument (command|subparser)",
    },
}
"""Why a form can't be held to its program here, and what such forms have."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, []), id=name) for name in SOURCES]
)
def test_each_form_is_in_its_source(name):
    text = SOURCES[name]()
    low = text.lower()
    elsewhere = re.compile("|".join(ELSEWHERE.get(name, {}).values()) or "(?!)")
    wrong = [
        (form, absent)
        for entry in RULES[name].entries
        for form in entry.forms
        if not elsewhere.search(form)
        and (absent := [piece for piece in pieces(form) if piece not in low])
    ]
    assert not wrong, wrong


def test_what_is_elsewhere_is_said_of_a_form():
    for name, reasons in ELSEWHERE.items():
        forms = [form for entry in RULES[name].entries for form in entry.forms]
        for why, pattern in reasons.items():
            for one in re.split(r"\|(?![^(]*\))", pattern):
                assert any(re.search(one, form) for form in forms), (why, one)
