"""Finding the usable devices, placing workers on them, and pinning a process from afar."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.devices import context, idle, pinning
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.devices.machine import busy_pct, cpu_clock_mhz, cpu_ticks
from pytest_kopt.devices.pinning import (
    Host,
    Placement,
    discover,
    for_target,
    place,
)
from pytest_kopt.devices.vendor import CPU, Device, Reading
from pytest_kopt.errors import BadInput
from pytest_kopt.processes import sites

from .fake_gpus import FakeVendor, gpu

A, B, C = gpu(0), gpu(1), gpu(2)


def use(monkeypatch: pytest.MonkeyPatch, vendor: FakeVendor | None) -> None:
    monkeypatch.setattr(idle, "INTERVAL", 0.0)
    monkeypatch.setattr(
        pinning, "discover", lambda kind, environ={}: discover(kind, environ, lambda: vendor)
    )


def test_usable_devices_are_the_visible_ones() -> None:
    host = discover("cuda", {"CUDA_VISIBLE_DEVICES": "2,0"}, lambda: FakeVendor([A, B, C]))
    assert host.devices == (C, A)
    assert host.pin(host.devices[0]) == {"CUDA_VISIBLE_DEVICES": C.uuid}


def test_no_gpu_is_bad_input() -> None:
    with pytest.raises(BadInput, match="--kopt-device"):
        discover("cuda", {}, lambda: None)
    with pytest.raises(BadInput, match=f"CUDA_VISIBLE_DEVICES='7'.*{A.uuid}"):
        discover("cuda", {"CUDA_VISIBLE_DEVICES": "7"}, lambda: FakeVendor([A]))


def test_the_cpu_is_one_device_and_asks_nobody() -> None:
    host = discover("cpu", {}, lambda: pytest.fail("not needed"))
    assert host == Host(None, (CPU,))
    assert host.pin(CPU) == {} and host.read(CPU) == Reading()


def device(uuid: str, architecture: str) -> Device:
    return replace(gpu(0, uuid), architecture=architecture)


@pytest.mark.parametrize(
    ("target", "architecture", "fits"),
    [
        ("sm_90", "sm_90", True),
        ("sm_90a", "sm_90", True),
        ("sm_100", "sm_90", False),
        ("gfx942", "gfx942:sramecc+:xnack-", True),
        ("gfx90a", "gfx90a", True),
        ("gfx942", "gfx950", False),
        ("gfx942", "", True),
        ("cpu", "sm_90", False),
        (None, "sm_90", True),
    ],
)
def test_a_campaign_is_measured_on_its_own_architecture(
    target: str | None, architecture: str, fits: bool
) -> None:
    host = Host(FakeVendor([]), (device("a", architecture),))
    if fits:
        assert for_target(host, target) == host
    else:
        with pytest.raises(BadInput, match=f"for {target}, here is {architecture}"):
            for_target(host, target)


def test_the_cpu_is_for_campaigns_on_the_cpu() -> None:
    host = Host(None, (CPU,))
    assert for_target(host, "cpu") == host
    with pytest.raises(BadInput, match="for sm_90, here is cpu"):
        for_target(host, "sm_90")


def test_the_clock_of_a_cpu_is_the_mean_of_its_cores(tmp_path: Path) -> None:
    assert cpu_clock_mhz(tmp_path) is None, "a virtual machine often tells none"
    for core, khz in enumerate((2_400_000, 3_000_000)):
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    assert cpu_clock_mhz(tmp_path) == 2700.0


def test_a_host_is_busy_by_all_that_runs_between_two_readings(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    assert cpu_ticks(file) is None
    file.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\n")
    before = cpu_ticks(file)
    file.write_text("cpu  130 10 50 850 60 0 0 0 0 0\n")
    assert busy_pct(before, cpu_ticks(file)) == 40.0
    assert busy_pct(before, before) is None and busy_pct(None, before) is None


def test_of_different_gpus_the_campaigns_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeVendor([device("GPU-old", "sm_80"), device("GPU-new", "sm_90")]))
    assert [d.uuid for d in place("cuda", "sm_90", None, print).devices] == ["GPU-new"]
    with pytest.raises(BadInput, match="for gfx942, here is sm_80, sm_90"):
        place("cuda", "gfx942", None, print)


def test_workers_go_round_the_idle_gpus_in_the_callers_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing is timed for the record, round all of them."""

    def state(device: Device, number: int) -> Reading:
        return Reading(utilisation_pct=90.0 if device is B else 0.0, memory_mib=float(device is A))

    use(monkeypatch, FakeVendor([A, B, C], state))
    gated = place("cuda", None, 0.0, print)
    pinned = [gated.host.pin(gated.device(k))["CUDA_VISIBLE_DEVICES"] for k in range(5)]
    assert pinned == [d.uuid for d in (A, C, A, C, A)]
    assert gated.best == C, "the most idle one takes a serial run"
    assert place("cuda", None, None, print).devices == (A, B, C)


def test_cases_stay_on_the_device_that_measured_them() -> None:
    found = Placement(Host(FakeVendor([A, B]), (A, B)), (A, B), B, print)
    uuids = {"a": A.uuid, "b": B.uuid, "c": None, "d": A.uuid}
    assert found.group(uuids) == {A: ["a", "d"], B: ["b", "c"]}


def spec(text: str) -> Any:
    execnet = pytest.importorskip("execnet")
    return execnet.XSpec(text)


def test_the_host_of_a_worker() -> None:
    proxies = {"px": spec("ssh=far//id=px")}
    assert sites.host_of(spec("popen"), proxies) == ""
    assert sites.host_of(spec("popen//python=python3.12"), proxies) == ""
    assert sites.host_of(spec("ssh=me@far//chdir=x"), proxies) == "me@far"
    assert sites.host_of(spec("socket=10.0.0.2:8888"), proxies) == "10.0.0.2"
    assert sites.host_of(spec("popen//via=px"), proxies) == "far"


@pytest.mark.parametrize(
    ("dist", "tx", "hosts"),
    [
        ("no", ["popen"], []),
        ("load", ["popen"], [""]),
        ("load", ["2*popen", "ssh=far"], ["", "", "far"]),
        ("load", ["popen", "3*popen//python=python3"], [""] * 4),
        ("load", ["2*ssh=far", "socket=near:1"], ["far", "far", "near"]),
    ],
)
def test_the_hosts_that_are_asked_for(dist: str, tx: list[str], hosts: list[str]) -> None:
    option = SimpleNamespace(dist=dist, collectonly=False, tx=tx, px=[])
    config: Any = SimpleNamespace(
        option=option, getoption=lambda name, default=None: getattr(option, name, default)
    )
    config.getvalue, config.stash = config.getoption, pytest.Stash()
    pytest.importorskip("execnet")
    assert sites.hosts_of(config) == hosts


def test_a_stranger_between_measurements_is_waited_for() -> None:
    """And for a device of the CPU, or where nothing is gated, nobody is asked."""
    busy = FakeVendor([A], lambda device, number: Reading(processes=(1,)))
    host = Host(busy, (A,))
    with pytest.raises(AllGpusBusy):
        Placement(host, (A,), A, print, wait_minutes=0.0).keep_strangers_off(A)
    Placement(host, (A,), A, print).keep_strangers_off(A)
    pinning.ON_CPU.keep_strangers_off(CPU)


@pytest.mark.parametrize("kind", [RuntimeError, AssertionError])
def test_a_gpu_that_torch_cannot_use_is_no_fault_of_the_kernel(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_use(host: Host) -> Device:
        raise kind("No CUDA GPUs are available.\nSet TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(context, "discover", lambda kind: Host(None, (A,)))
    monkeypatch.setattr(context, "in_use", in_use)
    with pytest.raises(
        BadInput, match=r"torch cannot use the GPU: No CUDA GPUs are available\. Fix"
    ):
        context.rouse("cuda")
