"""NVFP4 checkpoints: both producers' files, made by their own code and by a quantizer of our own,
come to the same weights.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from sparkbook.errors import SparkbookError
from sparkbook.kernels import checkpoint as c
from sparkbook.kernels import reference as r

from ..hub import Hub

GOLDEN = Path(__file__).parents[1] / "data" / "nvfp4"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text("utf-8"))
VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
TYPES = {"u1": "U8", "f4": "F32", "i4": "I32", "f2": "F16"}


# ---- a quantizer of the test's own: loops, and Python's floats


def e4m3(value: float) -> tuple[int, float]:
    """The byte of the nearest E4M3 number and that number, by trying all."""
    tried = [
        (abs(value - (m * 2.0**-9 if not e else (8 + m) * 2.0 ** (e - 10))), 8 * e + m)
        for e in range(16)
        for m in range(8)
        if 8 * e + m < 127
    ]
    byte = min(tried)[1]
    e, m = divmod(byte, 8)
    return byte, m * 2.0**-9 if not e else (8 + m) * 2.0 ** (e - 10)


def quantized(
    rows: int, columns: int, g: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes [rows, columns / 2], scales, the weights that they stand for [rows, columns] float64)."""
    weights = np.random.default_rng(seed).normal(0, 448 * g, (rows, columns))
    codes, scales, meant = (
        np.zeros((rows, columns // 2), "u1"),
        np.zeros((rows, columns // 16), "u1"),
        np.zeros((rows, columns)),
    )
    for n in range(rows):
        for block in range(columns // 16):
            part = weights[n, 16 * block : 16 * block + 16]
            scales[n, block], scale = e4m3(max(abs(part)) / 6 / g)
            for i, value in enumerate(part):
                k = 16 * block + i
                code = min(range(8), key=lambda j: abs(abs(value) / (scale * g) - VALUES[j]))
                meant[n, k] = np.copysign(VALUES[code] * scale * g, value)
                codes[n, k // 2] |= (code | (8 if value < 0 else 0)) << (4 * (k % 2))
    return codes, scales, meant


def in_tiles(scales: np.ndarray) -> np.ndarray:
    """Scales in cuBLAS's tiles, byte by byte, filled up with zeros."""
    rows, columns = scales.shape
    height, width = -(-rows // 128) * 128, -(-columns // 4) * 4
    flat = np.zeros(height * width, "u1")
    for n in range(rows):
        for k in range(columns):
            tile = n // 128 * (width // 4) + k // 4
            flat[512 * tile + 16 * (n % 32) + 4 * (n % 128 // 32) + k % 4] = scales[n, k]
    return flat.reshape(height, width)


def modelopt(name: str, codes, scales, g) -> dict:
    return {
        f"{name}.weight": codes,
        f"{name}.weight_scale": scales,
        f"{name}.weight_scale_2": np.float32(g),
    }


def packed(name: str, codes, scales, g) -> dict:
    return {
        f"{name}.weight_packed": codes,
        f"{name}.weight_scale": scales,
        f"{name}.weight_global_scale": np.array([1 / g], "f4"),
    }


def file_of(tensors: dict) -> bytes:
    header, data = {}, b""
    for name, value in tensors.items():
        value = np.asarray(value)
        dtype = TYPES[value.dtype.str[1:]]
        if name.endswith(".weight_scale") and dtype == "U8":
            dtype = "F8_E4M3"
        if name == "lm_head.weight":
            dtype = "BF16"
        header[name] = {
            "dtype": dtype,
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + value.nbytes],
        }
        data += value.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write(folder: Path, tensors: dict, change=lambda header: None, **config) -> c.NVFP4Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    data = file_of(tensors)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + data[8 + length :]
    )
    return c.open_folder(folder)


LAYER = quantized(6, 64, 0.01)
A = modelopt("a", *LAYER[:2], 0.01)


# ---- the producers' own files


@pytest.mark.parametrize("producer", ["modelopt", "compressed-tensors", "swizzled"])
def test_weights_are_what_the_producers_own_code_decodes(producer):
    opened = c.open_folder(GOLDEN / producer)
    assert opened.linears == sorted(EXPECTED[producer])
    for name, digest in EXPECTED[producer].items():
        layer = opened.linear(name)
        assert layer.producer == (
            "compressed-tensors" if producer == "compressed-tensors" else "modelopt"
        )
        assert layer.swizzled == (producer == "swizzled")
        assert (
            hashlib.sha256((layer.dequantize() + np.float32(0)).tobytes()).hexdigest() == digest
        ), name


def test_both_producers_files_are_read_to_the_same_weights():
    one, other = c.open_folder(GOLDEN / "modelopt"), c.open_folder(GOLDEN / "compressed-tensors")
    assert one.linears == other.linears
    for name in one.linears:
        a, b = one.linear(name), other.linear(name)
        assert (
            np.array_equal(a.codes, b.codes)
            and a.alpha == b.alpha == np.float32(2**-12)
            and a.input_scale == b.input_scale == 2**-7
        )
        # They differ in one byte, on purpose: the scale of the block of zeros.
        assert (a.scales != b.scales).sum() == 1 and np.array_equal(a.dequantize(), b.dequantize())


def test_what_is_not_quantized_is_told():
    opened = c.open_folder(GOLDEN / "modelopt")
    assert opened.others == {"lm_head": "bf16"} and opened.left_out == ("lm_head",)
    with pytest.raises(
        SparkbookError, match="lm_head is in bf16, not in NVFP4: its config leaves lm_head out"
    ):
        opened.linear("lm_head")


@pytest.mark.parametrize("producer", ["modelopt", "compressed-tensors"])
def test_products_with_a_read_layer_are_those_of_the_dense_one(producer):
    layer = c.open_folder(GOLDEN / producer).linear("model.layers.0.self_attn.q_proj")
    x = np.random.default_rng(3).standard_normal((3, 64))
    got = r.fp4_gemv(x, layer.codes, layer.scales, layer.alpha)
    assert np.allclose(got, x @ layer.dequantize().astype(np.float64).T, rtol=1e-12, atol=1e-12)


def test_q_k_and_v_are_joined():
    opened = c.open_folder(GOLDEN / "modelopt")
    names = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    joined = opened.joined(names)
    assert joined.shape == (64, 64)
    assert np.array_equal(
        joined.dequantize(), np.concatenate([opened.linear(name).dequantize() for name in names])
    )


def test_experts_are_stacked_as_the_kernel_takes_them():
    opened = c.open_folder(GOLDEN / "compressed-tensors")
    experts = opened.experts("model.layers.0.mlp.experts")
    assert (
        experts.w13[0].shape == (2, 128, 32)
        and experts.w2[1].shape == (2, 64, 4)
        and experts.w13[2].shape == (2, 2)
    )
    x = np.random.default_rng(4).standard_normal((1, 64))
    got = r.moe_decode(x, experts.w13, experts.w2, [[1, 0]], [[0.75, 0.25]])
    want = np.zeros(64)
    for expert, weight in ((1, 0.75), (0, 0.25)):
        gate, up, down = (
            opened.linear(f"model.layers.0.mlp.experts.{expert}.{part}_proj")
            .dequantize()
            .astype(np.float64)
            for part in ("gate", "up", "down")
        )
        h = gate @ x[0]
        want += weight * (down @ (h / (1 + np.exp(-h)) * (up @ x[0])))
    assert np.allclose(got[0], want, rtol=1e-9)


# ---- files written here


@pytest.mark.parametrize("form", [modelopt, packed])
@pytest.mark.parametrize("tiles", [False, True])
def test_what_an_independent_quantizer_wrote_is_read(tmp_path, form, tiles):
    codes, scales, meant = LAYER
    opened = write(tmp_path, form("a", codes, in_tiles(scales) if tiles else scales, 0.01))
    layer = opened.linear("a")
    assert layer.shape == (6, 64) and layer.swizzled == tiles and layer.input_scale is None
    assert np.allclose(layer.dequantize(), meant, rtol=3e-7, atol=0)


def test_scales_whose_shape_does_not_tell_are_read_as_the_caller_says(tmp_path):
    codes, scales = (
        np.zeros((128, 32), "u1"),
        np.arange(512, dtype=np.uint16).reshape(128, 4).astype("u1") % 120,
    )
    opened = write(tmp_path, modelopt("a", codes, in_tiles(scales), 1.0))
    assert np.array_equal(opened.linear("a", swizzled=True).scales, scales)
    assert not np.array_equal(opened.linear("a").scales, scales)


def test_the_name_may_be_the_tensors(tmp_path):
    assert write(tmp_path, A).linear("a.weight").name == "a"


def test_mixtrals_names_of_experts(tmp_path):
    tensors = {}
    for number, part in enumerate(("w1", "w2", "w3")):
        codes, scales, _ = quantized(16, 16, 0.01, number)
        tensors |= modelopt(f"experts.0.{part}", codes, scales, 0.01 * (number + 1))
    opened = write(tmp_path, tensors)
    assert np.allclose(opened.experts("experts").w13[2], [[0.01, 0.03]]) and np.allclose(
        opened.experts("experts").w2[2], [0.02]
    )


def _without(key):
    return {name: value for name, value in A.items() if not name.endswith(key)}


def _e8m0(header):
    header["a.weight_scale"]["dtype"] = "F8_E8M0"


@pytest.mark.parametrize(
    ("tensors", "change", "message"),
    [
        (
            _without("weight_scale"),
            None,
            "a has no weight_scale: the scales of its blocks are missing",
        ),
        (_without("weight_scale_2"), None, "a has no weight_scale_2: without the tensor's scale"),
        (
            {**A, "a.weight_scale": LAYER[1][:, :3]},
            None,
            r"shape \[6, 3\]; 6 x 64 weights .* need \[6, 4\], or \[128, 4\] in tiles",
        ),
        ({**A, "a.weight_scale": np.full_like(LAYER[1], 0x7F)}, None, "weight_scale holds NaN"),
        (
            {**A, "a.weight_scale": LAYER[1].astype("f4")},
            None,
            "weight_scale is of type F32; NVFP4's block scales are F8_E4M3",
        ),
        (A, _e8m0, "weight_scale is of type F8_E8M0"),
        (
            {**A, "a.weight_scale_2": np.zeros(1, "f4")},
            None,
            "weight_scale_2 is 0; a scale is a finite number above 0",
        ),
        ({**A, "a.weight_scale_2": np.float32("inf")}, None, "weight_scale_2 is inf"),
        (
            {**A, "a.weight_scale_2": np.ones(3, "f4")},
            None,
            r"weight_scale_2 is F32 \[3\]; expected one F32",
        ),
        (
            {**A, "a.weight": LAYER[0][:, :13]},
            None,
            r"shape \[6, 13\]; expected N rows of K / 2 bytes",
        ),
        (
            {**A, "a.weight": LAYER[0].reshape(1, 6, 32)},
            None,
            r"shape \[1, 6, 32\]; expected N rows",
        ),
        ({"a.weight": np.ones((4, 4), "f2")}, None, "a is in f16, not in NVFP4$"),
        ({"a.weight_packed": np.ones((4, 4), "i4")}, None, "a is in int4, not"),
        ({"a.qweight": np.ones((4, 4), "i4")}, None, "a is in int4, not"),
        ({"a.weight_packed": LAYER[0], "a.weight_scale": LAYER[1]}, _e8m0, "a is in mxfp4, not"),
        ({"b.weight": LAYER[0], "aa.weight": LAYER[0]}, None, "has no layer 'a'; did you mean aa"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, tensors, change, message):
    opened = write(tmp_path, tensors, change or (lambda header: None))
    with pytest.raises(SparkbookError, match=message):
        opened.linear("a")


def test_a_file_that_is_cut_off_is_told(tmp_path):
    opened = write(tmp_path, A)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-30])  # after it was opened
    with pytest.raises(SparkbookError, match=r"model.safetensors is cut off: \d+ of \d+ bytes"):
        [opened.linear(name) for name in opened.linears]
    with pytest.raises(SparkbookError, match="is cut off"):
        c.open_folder(tmp_path)


def test_bytes_that_do_not_fit_the_shape_are_told(tmp_path):
    def longer(header):
        header["a.weight"]["shape"] = [7, 32]

    with pytest.raises(
        SparkbookError,
        match=r"a.weight is U8 \[7, 32\], which takes 224 bytes, and the header gives it 192",
    ):
        write(tmp_path, A, longer)


def test_tensors_over_each_other_are_told(tmp_path):
    def over(header):
        begin, end = header["a.weight_scale"]["data_offsets"]
        header["a.weight_scale"]["data_offsets"] = [begin - 8, end - 8]

    with pytest.raises(SparkbookError, match=r"model.safetensors: a\.\w+ and a\.\w+ lie over"):
        write(tmp_path, A, over)


def test_experts_whose_halves_do_not_fit_are_told(tmp_path):
    half = quantized(32, 64, 0.01)[:2]
    named = [modelopt(f"e.0.{part}_proj", *half, 0.01) for part in ("gate", "up", "down")]
    opened = write(tmp_path, named[0] | named[1] | named[2])
    with pytest.raises(SparkbookError, match="e: the experts' shapes differ"):
        opened.experts("e")


def test_what_can_not_be_joined_or_stacked_is_told(tmp_path):
    other = modelopt("b", *quantized(6, 64, 0.02)[:2], 0.02) | modelopt(
        "n", *quantized(6, 32, 0.01)[:2], 0.01
    )
    experts = modelopt("e.0.gate_proj", *LAYER[:2], 0.01) | modelopt(
        "e.2.gate_proj", *LAYER[:2], 0.01
    )
    lone = modelopt("f.0.gate_proj", *LAYER[:2], 0.01) | modelopt("f.0.up_proj", *LAYER[:2], 0.01)
    opened = write(tmp_path, A | other | experts | lone)
    with pytest.raises(SparkbookError, match="a, b have different tensor scales"):
        opened.joined(["a", "b"])
    with pytest.raises(SparkbookError, match="inputs of 64, 32"):
        opened.joined(["a", "n"])
    with pytest.raises(SparkbookError, match="e: expert 1 is missing, of 3"):
        opened.experts("e")
    with pytest.raises(SparkbookError, match=r"no layer 'f.0.down_proj'"):
        opened.experts("f")
    with pytest.raises(SparkbookError, match="no experts at 'g'"):
        opened.experts("g")


@pytest.mark.parametrize("pattern", ["a", "re:a", "*a", "(", "re:("])
def test_patterns_of_the_config_are_understood_or_left(tmp_path, pattern):
    opened = write(
        tmp_path,
        {"a.weight": np.ones((4, 4), "f2")},
        quant_method="modelopt",
        exclude_modules=[pattern],
    )
    with pytest.raises(SparkbookError, match="leaves" if "(" not in pattern else "not in NVFP4$"):
        opened.linear("a")


def test_from_the_hub_only_a_layers_bytes_are_read(tmp_path, monkeypatch):
    from huggingface_hub import HfApi

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    data = file_of(A | {"lm_head.weight": np.zeros((1000, 100), "f2")})
    with Hub() as hub:
        hub.add("org/model", {"config.json": b"{}", "model.safetensors": data})
        opened = c.open_hub("org/model", api=HfApi(endpoint=hub.url, token=False))
        layer = opened.linear("a")
        asked = sum(
            int(b) - int(a) + 1
            for s in hub.requests("/")
            if s.range
            for a, b in [s.range.removeprefix("bytes=").split("-")]
        )
        assert asked < 3000 < len(data)
        assert np.array_equal(layer.codes, LAYER[0]) and np.array_equal(layer.scales, LAYER[1])
        hub.ranges = False
        with pytest.raises(SparkbookError, match="sends the whole of"):
            opened.linear("a")
        hub.fail("/resolve/", 403)
        with pytest.raises(SparkbookError, match="answers 403"):
            opened.linear("a")
