"""Which devices a process sees under its masks, and what pins it to one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.devices.vendor import AMD, CPU, NVIDIA, Device, pin, visible

from .fake_gpus import gpu

FOUR = [
    gpu(0, "GPU-aaaa1111-0"),
    gpu(1, "GPU-aaaa2222-0"),
    gpu(2, "GPU-bbbb3333-0"),
    gpu(3, "GPU-cccc4444-0"),
]
DIVIDED = [gpu(0, "GPU-aaaa1111-0"), gpu(1, "MIG-1111-x"), gpu(1, "MIG-2222-x")]


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("2,1", [2, 1]),
        (" 3 , 0 ", [3, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,2,-1,1", [0, 2]),
        ("1,4,0", [1]),
        ("1,,0", [1]),
        ("0,0", []),
        ("GPU-bbbb3333-0", [2]),
        ("GPU-b,GPU-C", [2, 3]),
        ("GPU-aaaa,0", []),
        ("GPU-bbbb,GPU-dddd,GPU-cccc", [2]),
        ("GPU-bbbb3333-0,2", []),
        ("1,GPU-cccc", [1, 3]),
    ],
)
def test_a_mask_of_cuda(mask: str | None, seen: list[int]) -> None:
    """Indices, UUIDs and their unique beginnings; nothing after what names no device."""
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert visible(FOUR, NVIDIA, environ) == [FOUR[i] for i in seen]


@pytest.mark.parametrize(
    ("mask", "seen"),
    [("MIG-2222-x", [2]), ("1", [1]), ("MIG-1111-x,MIG-2222-x", [1, 2]), ("MIG-", [])],
)
def test_instances_of_a_divided_gpu(mask: str, seen: list[int]) -> None:
    assert visible(DIVIDED, NVIDIA, {"CUDA_VISIBLE_DEVICES": mask}) == [DIVIDED[i] for i in seen]


def test_the_masks_of_rocm_are_applied_one_after_the_other() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "3,GPU-aaaa1111-0,2", "HIP_VISIBLE_DEVICES": "2,0"}
    assert [d.uuid for d in visible(FOUR, AMD, environ)] == [FOUR[2].uuid, FOUR[3].uuid]
    alone = {"CUDA_VISIBLE_DEVICES": "1"}
    assert [d.uuid for d in visible(FOUR, AMD, alone)] == [FOUR[1].uuid]
    both = alone | {"HIP_VISIBLE_DEVICES": "2"}
    assert [d.uuid for d in visible(FOUR, AMD, both)] == [FOUR[2].uuid]
    assert visible(FOUR, NVIDIA, environ) == FOUR, "not NVIDIA's masks"


masks = st.lists(st.sampled_from([*"01234", *(d.uuid for d in FOUR)]), max_size=4).map(",".join)


@given(masks, st.sampled_from([NVIDIA, AMD]))
def test_a_pinned_process_sees_its_device_alone(mask: str, stages: object) -> None:
    """Whatever masks the caller had set."""
    assert isinstance(stages, tuple)
    environ = {name: mask for stage in stages for name in stage}
    for device in visible(FOUR, stages, environ):
        pinned: list[Device] = visible(FOUR, stages, environ | pin(device, stages))
        assert [d.uuid for d in pinned] == [device.uuid]


def test_the_cpu_needs_no_pin() -> None:
    assert pin(CPU, NVIDIA) == {}
