"""What the loading layer checks before anything reaches the GPU, with stand-ins for arrays and for
the C library.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.kernels import library as lib


class Fake:
    """An array on the GPU, by its description only."""

    def __init__(
        self, typestr: str, *shape: int, pointer: int = 4096, strides: tuple[int, ...] | None = None
    ) -> None:
        self.shape = shape
        self.__cuda_array_interface__ = {
            "data": (pointer, False),
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
            "version": 3,
        }


@pytest.fixture
def calls(monkeypatch) -> tuple[lib.Library, list]:
    """A Library over a C library that notes its calls."""
    seen: list = []

    class C:
        def __getattr__(self, name):
            def call(*arguments):
                seen.append((name, arguments))
                return 0

            function = SimpleNamespace() if name in ("sb_error",) else call
            return function

    made = object.__new__(lib.Library)
    made._c = C()
    return made, seen


def gemv(**changes):
    given = {
        "x": Fake("<f2", 2, 128),
        "codes": Fake("|u1", 48, 64),
        "scales": Fake("|u1", 48, 8),
        "alpha": Fake("<f4", 1),
        "y": Fake("<f4", 2, 48),
    }
    return given | changes


def test_a_call_passes_addresses_sizes_and_types(calls):
    library, seen = calls
    library.fp4_gemv(**gemv(y=Fake("<f2", 2, 48, pointer=8192)), stream=7, pdl=True)
    ((name, arguments),) = seen
    assert name == "sb_fp4_gemv"
    assert arguments == (4096, 4096, 4096, 4096, 2, 8192, 2, 2, 48, 128, 0, 0, True, 7)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": Fake("<f4", 2, 128)}, "x is of type f32; expected bf16 or f16"),
        ({"x": Fake("<f2", 2, 64)}, "x has the shape 2 x 64; expected any x 128"),
        (
            {"x": Fake("<f2", 9, 128), "y": Fake("<f4", 9, 48)},
            "x has 9 rows; these kernels take 1 to 8",
        ),
        ({"scales": Fake("|u1", 48, 4)}, "scales has the shape 48 x 4; expected 48 x 8"),
        ({"codes": Fake("|u1", 48, 24)}, "K is 48; it has to be a multiple of 64"),
        ({"codes": Fake("|u1", 48, 64, strides=(128, 1))}, "codes is not contiguous"),
        (
            {"codes": Fake("|u1", 48, 64, pointer=4104)},
            "codes starts at an address that is not a multiple of 16",
        ),
        ({"alpha": Fake("<f4", 2)}, "alpha has 2 values; expected one"),
        ({"y": Fake("<f4", 2, 47)}, "y has the shape 2 x 47; expected 2 x 48"),
        ({"y": [0.0]}, "y is a list; expected a torch tensor"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_gpu_sees_it(calls, changes, says):
    library, seen = calls
    with pytest.raises(SparkbookError, match=says):
        library.fp4_gemv(**gemv(**changes))
    assert not seen


def test_a_tensor_on_the_cpu_is_refused(calls):
    tensor = SimpleNamespace(
        data_ptr=lambda: 0,
        is_contiguous=lambda: True,
        is_cuda=False,
        device="cpu",
        shape=(2, 128),
        dtype="torch.float16",
    )
    with pytest.raises(SparkbookError, match="x is on cpu"):
        calls[0].fp4_gemv(**gemv(x=tensor))


def test_moe_shapes_hang_together(calls):
    library, seen = calls
    e, inter, hidden, m, topk = 4, 64, 128, 2, 3
    given = {
        "x": Fake("<V2", m, hidden),
        "w13": (
            Fake("|u1", e, 2 * inter, hidden // 2),
            Fake("|u1", e, 2 * inter, hidden // 16),
            Fake("<f4", e, 2),
        ),
        "w2": (
            Fake("|u1", e, hidden, inter // 2),
            Fake("|u1", e, hidden, inter // 16),
            Fake("<f4", e),
        ),
        "ids": Fake("<i4", m, topk),
        "weights": Fake("<f4", m, topk),
        "h": Fake("<V2", m, topk, inter),
        "y": Fake("<V2", m, hidden),
    }
    library.moe_decode(**given)
    assert seen[0][1][6] == e and seen[0][1][-6:] == (m, topk, inter, hidden, False, 0)
    with pytest.raises(SparkbookError, match="h is of type f16; expected bf16"):
        library.moe_decode(**given | {"h": Fake("<f2", m, topk, inter)})
    with pytest.raises(SparkbookError, match="ids is of type i64; expected i32"):
        library.moe_decode(**given | {"ids": Fake("<i8", m, topk)})


def test_without_a_driver_the_message_says_so():
    try:
        found = lib.capability()
    except SparkbookError as error:
        assert "driver" in str(error)
    else:
        assert found >= (7, 0)  # a machine with a GPU


def test_an_architecture_without_a_target_is_named(monkeypatch):
    monkeypatch.setattr(lib, "capability", lambda device: (8, 9))
    with pytest.raises(SparkbookError, match=r"this GPU has 8\.9"):
        lib.target_for()
    monkeypatch.setattr(lib, "capability", lambda device: (12, 1))
    assert lib.target_for() == "sm_121f"


def test_a_call_for_prefill_passes_both_sides(calls):
    library, seen = calls
    library.prefill = True

    def side(rows: int, k: int, first: int, **changes):
        given = {
            "codes": Fake("|u1", rows, k // 2, pointer=first),
            "scales": Fake("|u1", rows, k // 16, pointer=first + 4096),
            "alpha": Fake("<f4", 1, pointer=first + 8192),
        }
        return tuple((given | changes).values())

    y = Fake("|V2", 300, 130, pointer=65536)
    library.fp4_prefill(side(300, 192, 16384), side(130, 192, 32768), y, stream=7, pdl=True)
    (name, arguments) = seen.pop()
    assert name == "sb_fp4_prefill"
    places = (16384, 20480, 24576, 32768, 36864, 40960, 65536)
    assert arguments == (*places, 1, 300, 130, 192, True, 7)
    with pytest.raises(SparkbookError, match="K is 96; it has to be a multiple of 64"):
        library.fp4_prefill(side(300, 96, 16384), side(130, 96, 32768), y)
    with pytest.raises(SparkbookError, match="w's codes has the shape 130 x 64; expected 130 x 96"):
        library.fp4_prefill(side(300, 192, 16384), side(130, 128, 32768), y)
    assert not seen
