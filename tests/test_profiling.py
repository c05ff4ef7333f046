from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from pytest_kopt import models
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.protocol import Begin, Profile, StopWorker
from pytest_kopt.cases.replies import Profiled
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.processes import served
from pytest_kopt.processes.channel import read_replies, write_orders
from pytest_kopt.processes.launched import boot
from pytest_kopt.profiling import kernel_table
from pytest_kopt.profiling.kernel_table import (
    CaseProfile,
    KernelRow,
    gpu_step_us,
    rows_of,
)
from pytest_kopt.profiling.vendor_tools import (
    ncu_command,
    ncu_launches,
    rocprof_launches,
    rocprof_report,
)
from pytest_kopt.show.rooflines import page_of, profile_lines, read_profiles, write_profiles
from tests.driven_campaign import DrivenCampaign

NCU = """\
==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "_rmsnorm" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","gpu__time_duration.sum","launch__registers_per_thread",\
"launch__shared_mem_per_block","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","ns","register/thread","byte/block","%"
"0","4242","python3.12","127.0.0.1","_rmsnorm","1","7","(256, 1, 1)","(16384, 1, 1)","0","9.0",\
"126,400","40","1056","71.25"
"1","4242","python3.12","127.0.0.1","_rmsnorm","1","7","(256, 1, 1)","(16384, 1, 1)","0","9.0",\
"125600","40","1056","72.75"
"2","4242","python3.12","127.0.0.1","void f<a, b>(int)","1","7","(256, 1, 1)","(1, 1, 1)","0",\
"9.0","2000","16","0","n/a"
"""

ROCPROF = """\
"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",\
"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count",\
"Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",\
"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 4",1,0,70,1,9,"pa_fwd",1,1000,9000,32768,0,96,32,80,256,1,1,16384,1,1
"KERNEL_DISPATCH","Agent 4",1,0,70,2,3,"at::cuda::spin_kernel(long)",2,10000,10500,0,0,8,0,16,\
1,1,1,1,1,1
"KERNEL_DISPATCH","Agent 4",1,0,70,4,9,"pa_fwd",4,30000,36000,32768,0,96,32,80,256,1,1,16384,1,1
"KERNEL_DISPATCH","Agent 4",1,0,70,3,9,"pa_fwd",3,20000,24000,32768,0,96,32,80,256,1,1,16384,1,1
"KERNEL_DISPATCH","Agent 4",1,0,70,5,3,"at::cuda::spin_kernel(long)",5,40000,40500,0,0,8,0,16,\
1,1,1,1,1,1
"""

TRACE = {
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 90.0},
        {"ph": "M", "cat": "kernel", "name": "metadata"},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "_matmul",
            "dur": 215.5,
            "args": {
                "registers per thread": 168,
                "shared memory": 98304,
                "est. achieved occupancy %": 12,
            },
        },
        {"ph": "X", "cat": "kernel", "name": "_matmul", "dur": 216.5, "args": {}},
        {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "dur": 1.0, "args": {}},
    ]
}


def test_ncu_gives_times_registers_shared_memory_and_occupancy() -> None:
    hot, cold = rows_of(ncu_launches(NCU))
    assert (hot.kernel, hot.calls) == ("_rmsnorm", 2)
    assert hot.mean_us == pytest.approx(126.0)
    assert (hot.registers, hot.shared_bytes) == (40, 1056)
    assert hot.occupancy_pct == pytest.approx(72.0)
    assert (cold.kernel, cold.mean_us, cold.occupancy_pct) == ("void f<a, b>(int)", 2.0, None)


@pytest.mark.parametrize(("unit", "microseconds"), [("us", 126400.0), ("nsecond", 126.4)])
def test_ncu_tells_its_unit(unit: str, microseconds: float) -> None:
    text = NCU.replace(',"ns",', f',"{unit}",')
    assert ncu_launches(text)[0].mean_us == pytest.approx(microseconds)


def test_ncu_without_permission_says_why() -> None:
    refused = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission for counters\n"
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        ncu_launches(refused)
    with pytest.raises(ValueError, match="wrote nothing"):
        ncu_launches("")


def test_ncu_leaves_clocks_and_caches_alone() -> None:
    words = ncu_command(Path("/x"))
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--cache-control") + 1] == "none"
    assert words[words.index("--log-file") + 1] == "/x/report.csv"


@pytest.mark.parametrize("text", [ROCPROF, ROCPROF.replace("_Count", "_count").lower()])
def test_rocprofv3_counts_what_lies_between_the_marks(text: str) -> None:
    (row,) = rows_of(rocprof_launches(text))
    assert (row.kernel, row.calls, row.mean_us) == ("pa_fwd", 2, 5.0)
    assert (row.registers, row.accum_registers, row.scalar_registers) == (96, 32, 80)
    assert row.shared_bytes == 32768


def test_rocprofv3_without_marks_or_table_says_so(tmp_path: Path) -> None:
    unmarked = "\n".join(line for line in ROCPROF.splitlines() if "spin_kernel" not in line)
    unmarked = "\n".join(line for line in unmarked.splitlines() if not line.startswith("1,1"))
    with pytest.raises(ValueError, match="marks"):
        rocprof_launches(unmarked)
    with pytest.raises(ValueError, match="no kernel trace"):
        rocprof_launches("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no kernel trace"):
        rocprof_report(tmp_path)


def test_rocprofv3s_report_is_found_wherever_it_puts_it(tmp_path: Path) -> None:
    path = tmp_path / "host" / "kopt_kernel_trace.csv"
    path.parent.mkdir()
    path.write_text(ROCPROF)
    assert rocprof_report(tmp_path) == ROCPROF


def test_torchs_trace_gives_what_ran_on_the_device() -> None:
    hot, rest = rows_of(kernel_table.launches(TRACE))
    assert (hot.kernel, hot.calls, hot.mean_us) == ("_matmul", 2, 216.0)
    assert (hot.registers, hot.shared_bytes, hot.occupancy_pct) == (168, 98304, 12.0)
    assert rest.kernel == "Memset (Device)"
    assert kernel_table.launches({}) == []


def profile(label: str, tool: str, *launches: KernelRow, steps: int = 2) -> CaseProfile:
    return CaseProfile(f"t.py::{label}", label, tool, "gpu", steps, rows_of(launches))


MAIN = [KernelRow("main", 1, 10.0, registers=32), KernelRow("main", 1, 12.0, registers=32)]
PROFILES = [
    profile("a", "torch.profiler", *MAIN, KernelRow("reduce", 1, 2.0)),
    profile("a", "ncu", *MAIN),
    CaseProfile("t.py::b", "b", "ncu", "gpu", 1, (), note="no permission"),
]


CASE = """\
import pytest
import torch


def doubled(x):
    return x + x


@pytest.mark.kopt(schema="memory")
def test_doubled(kopt):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(8, 8),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": 8},
        nbytes=512,
    )
"""


class Left(BaseException):
    """In place of the end of a process that runs nothing at its exit."""


@pytest.mark.parametrize(("is_watched", "end"), [(True, SystemExit), (False, Left)])
def test_a_vendors_tool_that_watches_a_worker_sees_it_exit(
    is_watched: bool, end: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes its report then; any other worker ends as soon as its session has."""
    worker = WorkerOrders("cpu", "auto", 7, 60.0, "standard")
    begin = Begin(worker, [*sys.path], [*sys.argv], [], is_watched=is_watched)
    to_process = ("adopt_orphans", "_keep_from_children", "keep_freed_memory")
    for name in (*to_process, "compile_from_source", "Connection"):
        monkeypatch.setattr(served, name, mock.Mock())
    channel = mock.Mock(receive=lambda: begin)
    monkeypatch.setattr(served, "Channel", lambda *_: channel)
    monkeypatch.setattr(served, "leave", mock.Mock(side_effect=Left))
    outlived = list[str]()

    def session(words: list[str], plugins: list[object]) -> int:
        (serving,) = (each for each in plugins if isinstance(each, served.Serve))
        serving.pytest_sessionfinish(0)
        outlived.append("the last hook")
        return 0

    monkeypatch.setattr(pytest, "main", session)
    with pytest.raises(end):
        served.serve(0, 1, tmp_path)
    assert bool(outlived) is is_watched


@pytest.mark.long
def test_a_watched_worker_takes_orders_from_a_file_and_ends_as_an_interpreter_does(
    tmp_path: Path,
) -> None:
    """A vendor's tool hands no descriptor on, and writes its report when the process exits."""
    (tmp_path / "test_case.py").write_text(CASE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    orders, replies, nodeid = (
        tmp_path / "orders",
        tmp_path / "replies",
        "test_case.py::test_doubled",
    )
    worker = WorkerOrders("cpu", "auto", 7, 60.0, "standard")
    begin = Begin(worker, sys.path, [], ["-p", "no:cacheprovider"], is_watched=True)
    write_orders(orders, begin, Profile(nodeid), StopWorker())
    exits = "import atexit; atexit.register(print, 'the report'); "
    *command, code = boot("pytest_kopt.processes.served:main")
    words = [*command, exits + code, *map(str, (orders, replies, tmp_path))]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.rstrip().endswith("the report"), done.stdout + done.stderr
    (profiled,) = [each for each in read_replies(replies) if isinstance(each, Profiled)]
    assert profiled.profile.nodeid == nodeid and profiled.profile.rows


def test_the_hottest_has_the_largest_share_not_the_longest_call() -> None:
    found = profile("a", "ncu", *[KernelRow("often", 1, 3.0)] * 9, KernelRow("once", 1, 20.0))
    assert found.hottest is not None and found.hottest.kernel == "often"
    assert found.step_us == pytest.approx(47 / 2)


def test_torchs_profiler_counts_before_the_vendors_tool() -> None:
    """So that rounds compare: a vendor's tool runs on request alone."""
    assert gpu_step_us(PROFILES) == {"t.py::a": 12.0}
    cpu = CaseProfile("t.py::c", "c", "torch.profiler", "cpu", 1, (KernelRow("aten::mm", 1, 9.0),))
    assert gpu_step_us([cpu]) == {}


def test_profiles_are_kept_as_data_and_as_a_page(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_profiles(layout, 3, 2, PROFILES)
    assert read_profiles(layout, 3, 2) == PROFILES
    assert read_profiles(layout, 3, 1) == []
    page = (layout.profiles / "round-3" / "attempt-2.md").read_text()
    assert "hottest: `main`" in page and "Nothing: no permission" in page
    header, _, first = page.split("a (ncu)")[1].splitlines()[4:7]
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        *("Kernel", "Calls", "Mean (us)", "Share", "Registers")
    ]
    assert first.startswith("| main") and "100.0 %" in first and "32" in first
    lines = list(profile_lines(PROFILES))
    assert lines[0] == "profile a (torch.profiler): main 11.00 us x 2, 91.7 % of 12.00 us a step"
    assert lines[2] == "profile b (ncu): no permission"


def test_a_page_without_profiles_is_empty() -> None:
    assert page_of([]) == ""


@pytest.mark.parametrize("document", [{}, {"rows": [{"kernel": "x"}]}, json.loads("[]")])
def test_what_is_no_profile_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a CaseProfile"):
        models.read(CaseProfile, document)


def test_kernel_opt_shows_gpu_time_and_decides_by_the_comparison(tmp_path: Path) -> None:
    """The faster version's kernels take as long as the baseline's, and it is kept."""
    project = DrivenCampaign(
        tmp_path / "p", {"kernels/a.py": b"A = 1\n"}, in_git=False, policy="kernel-opt"
    )
    verdicts = [project.play("equal").verdict]
    project.write("kernels/a.py", b"A = 2\n")
    verdicts.append(project.play("faster").verdict)
    for found, decision in zip(verdicts, (Decision.BASELINE, Decision.ACCEPTED), strict=True):
        assert found is not None and found.decision is decision
        assert found.kernel_time is not None and found.kernel_time.hottest == "hot"
        assert found.kernel_time.candidate_us == pytest.approx(100.0)
        assert any(flag.startswith("GPU kernel time: 100.0 us a step") for flag in found.flags)
    assert (project.layout.profiles / "round-2" / "attempt-1.json").is_file()


def test_other_policies_profile_no_round_unasked(tmp_path: Path) -> None:
    project = DrivenCampaign(tmp_path / "p", {"kernels/a.py": b"A = 1\n"}, in_git=False)
    found = project.play("equal").verdict
    assert found is not None and found.kernel_time is None


@pytest.mark.gpu
def test_torchs_profiler_sees_a_gpus_kernels() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    from pytest_kopt.cases.running.profile_region import _recorded

    x = torch.randn(1024, 1024, device="cuda")
    (row,) = _recorded(lambda _: x.add_(1), 5, "cuda")
    assert row.calls == 5 and 0 < row.mean_us < 1000
