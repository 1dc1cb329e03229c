"""Another machine than this one, for vLLM: its packages, its driver's answers, its network."""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import socket
import sys
import types
from typing import ClassVar
from unittest.mock import MagicMock

BUILDING: list = []
"""Not empty while a model is built."""

LATER: list = []
"""What is to be done once torch and vLLM are imported, before any class of a model is."""

# ---- what is installed


class Anything(types.ModuleType):
    """A module in which every name exists."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=name)
        # A table of what is supported: the release's own image has the version that it asks for.
        value.__contains__.return_value = True
        setattr(self, name, value)
        return value


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that count as installed though they are not on this machine.

    Args:
        versions: import name: version.
    """

    names: ClassVar = {"flashinfer": "flashinfer-python", "deep_gemm": "deep-gemm"}

    def __init__(self, versions):
        self.versions = versions
        self.known = importlib.metadata.version
        importlib.metadata.version = self.version

    def find_spec(self, name, path=None, target=None):
        parent = sys.modules.get(name.rpartition(".")[0])
        if name.partition(".")[0] in self.versions or isinstance(parent, Anything):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        module.__version__ = self.versions.get(module.__name__.partition(".")[0], "0")

    def version(self, distribution):
        for module, version in self.versions.items():
            if distribution in (module, self.names.get(module)):
                return version
        return self.known(distribution)


def install(installed):
    """Make packages count as installed or missing. Returns what holds, name: version, true or
    false; a package that is really there wins over a stand-in.
    """
    stand_ins, holds = {}, {}
    for name, version in installed.items():
        try:
            real = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            real = False
        if not version:
            sys.modules[name] = None  # an import then fails as that of a missing package does
            holds[name] = False
        elif real or name == "triton":  # of Triton vLLM only asks whether it works: see `triton`
            holds[name] = version
        else:
            stand_ins[name] = version if isinstance(version, str) else "0"
            holds[name] = version
    finder = StandIns(stand_ins)
    sys.meta_path.insert(0, finder)
    if stand_ins.pop("cuda", None):
        # torch takes a `cuda` that is there at its import for the real one.
        LATER.append(lambda: finder.versions.update(cuda="0"))
    if "humming" in stand_ins:
        LATER.append(_spare_humming)
    if holds.get("flashinfer"):
        # FlashInfer compiles kernels when they are first used, with nvcc or from ready-made ones.
        os.environ.setdefault("VLLM_HAS_FLASHINFER_CUBIN", "1")
    return holds


def _spare_humming():
    """vLLM mends classes of Humming before its first use; a stand-in has none."""
    with contextlib.suppress(ImportError):
        importlib.import_module("vllm.utils.humming")._patched = True


# ---- the machine


def stub_operators(torch):
    """Let compiled operators that this build lacks exist while a model is built.

    While modules are imported, `hasattr(torch.ops…)` must say no. An operator that is asked whether
    something is supported says yes: the CUDA build has it.
    """
    import torch._ops
    import torch.library

    known = torch._ops._OpNamespace.__getattr__

    def operator(self, name):
        try:
            return known(self, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            if "support" in name:
                return lambda *_, **__: True
            if BUILDING:
                return MagicMock(name=name)
            raise

    torch._ops._OpNamespace.__getattr__ = operator
    for name in ("_register_fake", "register_fake"):
        if registered := getattr(torch.library.Library, name, None):
            setattr(torch.library.Library, name, _lenient(registered))
    torch.library.register_fake = _lenient(torch.library.register_fake)


def _lenient(register):
    """The shape function of an operator that this build lacks is left out."""

    def lenient(*args, **kwargs):
        try:
            return register(*args, **kwargs)
        except RuntimeError as error:
            if "does not exist" not in str(error):
                raise
            return lambda function: function

    return lenient


def pretend(machine):
    """Set vLLM's platform to CUDA on the pretended machine."""
    import torch
    import vllm.platforms
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    major, minor = machine["capability"]
    total, name = int(machine["total_bytes"]), machine["name"]

    class Pretended(CudaPlatformBase):
        """What the driver would answer. NVML knows no size of the memory of an integrated GPU:
        on a GB10 its function raises "Not Supported" (vLLM pull request 57378).
        """

        @classmethod
        def get_device_total_memory(cls, device_id=0):
            if machine.get("integrated"):
                raise NotImplementedError("NVML: Not Supported")
            return total

        @classmethod
        def has_device_capability(cls, capability, device_id=0):
            asked = capability if isinstance(capability, tuple) else divmod(capability, 10)
            return (major, minor) >= tuple(asked)

    answers = {
        "import_kernels": None,
        "log_warnings": None,
        "get_device_capability": DeviceCapability(major, minor),
        "get_device_name": name,
        "get_device_uuid": "GPU-0",
        "is_fully_connected": False,
        "is_integrated_gpu": bool(machine.get("integrated")),
        "num_compute_units": machine["multiprocessors"],
        "device_count": machine.get("gpus", 1),
        "get_cuda_runtime_major": 13,
        "is_arch_support_pdl": True,
        "current_device": "meta",
        # Nothing is sent between the ranks of a model that is only built.
        "get_device_communicator_cls": (
            "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
        ),
    }
    for function, value in answers.items():
        setattr(Pretended, function, classmethod(lambda cls, *_, _value=value, **__: _value))
    about = types.SimpleNamespace(
        name=name,
        major=major,
        minor=minor,
        total_memory=total,
        multi_processor_count=machine["multiprocessors"],
        is_integrated=int(bool(machine.get("integrated"))),
        shared_memory_per_block_optin=101376,
        warp_size=32,
    )
    torch.cuda.get_device_properties = lambda *_, **__: about
    torch.cuda.get_device_capability = lambda *_, **__: (major, minor)
    torch.cuda.get_device_name = lambda *_, **__: name
    torch.cuda.device_count = lambda: machine.get("gpus", 1)
    torch.cuda.current_device = lambda: 0
    vllm.platforms._current_platform = Pretended()


def no_network():
    """Let no connection leave this machine, whatever a config or a line names."""
    connect = socket.socket.connect

    def local(self, address):
        outward = self.family in (socket.AF_INET, socket.AF_INET6)
        if outward and not str(address[0]).startswith(("127.", "::1", "localhost")):
            raise OSError("the network is not used")
        return connect(self, address)

    socket.socket.connect = local
    socket.getaddrinfo = _refuse_name(socket.getaddrinfo)


def _refuse_name(lookup):
    def local(host, *args, **kwargs):
        if host not in (None, "", "localhost", socket.gethostname()) and not re.fullmatch(
            r"[\d.]+|[\da-f:]+", str(host)
        ):
            raise socket.gaierror("the network is not used")
        return lookup(host, *args, **kwargs)

    return local


def triton(works):
    """Say whether Triton works; its kernels are never run, so vLLM's own placeholder does."""
    import vllm.triton_utils
    import vllm.triton_utils.importing as importing

    vllm.triton_utils.HAS_TRITON = importing.HAS_TRITON = bool(works)
    stand_in = vllm.triton_utils.triton
    if works and not hasattr(stand_in, "runtime"):
        # Classes that vLLM compares its kernels with.
        tuner = types.SimpleNamespace(Autotuner=type("Autotuner", (), {}))
        stand_in.runtime = types.SimpleNamespace(autotuner=tuner)


def imports(name):
    """Whether a compiled module is there and loads; the CPU build's own does not count."""
    if importlib.util.find_spec("vllm") is None:
        raise SystemExit("this Python has no vLLM")
    if "cpu" in (_version("vllm") or "cpu"):
        return False
    try:
        importlib.import_module(name)
    except Exception:  # noqa: BLE001 - a library of CUDA that is not there fails in many ways
        return False
    return True


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
