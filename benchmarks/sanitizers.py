"""Plant faults in small CUDA kernels and print what `pytest --kopt-sanitize` names of them.

    python benchmarks/sanitizers.py

Needs an NVIDIA GPU, the CUDA toolkit (nvcc and compute-sanitizer on PATH) and torch. Takes a few
minutes, most of them for building and for starting torch under the tools.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck")
#: The kernel that each tool is to name; the clean one is to be named by none.
PLANTED = {"memcheck": "beyond", "racecheck": "racing", "initcheck": "unwritten"}
_SECONDS = 450

CUDA = r"""
#include <torch/extension.h>

__global__ void clean_kernel(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}

// Reads one element after the last where the mask is off by one.
__global__ void beyond_kernel(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) {
        float value = x[i];
        // The compiler would leave out a read whose value nobody uses.
        out[i < n ? i : 0] = i < n ? 2 * value : 2 * x[0] + 0 * value;
    }
}

// Reads a neighbour's element with no barrier after the write.
__global__ void racing_kernel(const float* x, float* out, int n) {
    __shared__ float tile[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0;
    float other = tile[255 - threadIdx.x];
    if (i < n) out[i] = 2 * x[i] + 0 * other;
}

// Adds up memory that nobody wrote.
__global__ void unwritten_kernel(const float* x, const float* scratch, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i] + (scratch[i] == 12345.0f);
}

static int blocks(const torch::Tensor& x) { return (x.numel() + 255) / 256; }

#define LAUNCH(name) \
torch::Tensor name(torch::Tensor x) { \
    auto out = torch::empty_like(x); \
    name##_kernel<<<blocks(x), 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel()); \
    return out; \
}
LAUNCH(clean)
LAUNCH(beyond)
LAUNCH(racing)

torch::Tensor unwritten(torch::Tensor x) {
    auto out = torch::empty_like(x), scratch = torch::empty_like(x);
    unwritten_kernel<<<blocks(x), 256>>>(
        x.data_ptr<float>(), scratch.data_ptr<float>(), out.data_ptr<float>(), x.numel());
    return out;
}
"""
KERNELS = """\
from pathlib import Path

from torch.utils.cpp_extension import load_inline

NAMES = ["clean", "beyond", "racing", "unwritten"]
_source = Path(__file__).with_name("planted.cu").read_text()
_folder = Path(__file__).with_name("build")
_folder.mkdir(exist_ok=True)
_built = load_inline(
    name="planted",
    cpp_sources="\\n".join(f"torch::Tensor {name}(torch::Tensor x);" for name in NAMES),
    cuda_sources=_source,
    functions=NAMES,
    extra_cuda_cflags=["-lineinfo"],
    build_directory=str(_folder),
)


def clean(x):
    return _built.clean(x)


def beyond(x):
    return _built.beyond(x)


def racing(x):
    return _built.racing(x)


def unwritten(x):
    return _built.unwritten(x)
"""
CASES = """\
import planted
import pytest
import torch

N = 16381


@pytest.mark.kopt
@pytest.mark.parametrize("name", planted.NAMES)
def test_planted(kopt, name):
    kopt(
        getattr(planted, name),
        inputs=lambda: (torch.randn(N, device=kopt.device),),
        reference=lambda x: 2 * x.double(),
        dims={"name": name},
    )
"""


def main() -> int:
    """Print a table of cases and tools; return 1 unless each fault alone was named."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        files = {"planted.cu": CUDA, "planted.py": KERNELS, "test_planted.py": CASES}
        for file, text in {**files, "pytest.ini": "[pytest]\npythonpath = .\n"}.items():
            (root / file).write_text(text)
        # Built before a tool slows it down.
        subprocess.run([sys.executable, "-c", "import planted"], cwd=root, check=True)
        words = [
            f"--kopt-sanitize={','.join(TOOLS)}",
            "--kopt-device=cuda",
            "-p",
            "no:cacheprovider",
        ]
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    print(run.stdout[-6000:], run.stderr[-3000:], sep="\n")
    named = _named(run.stdout)
    print("| kernel | " + " | ".join(TOOLS) + " |")
    print("| --- |" + " --- |" * len(TOOLS))
    for kernel in ("clean", *PLANTED.values()):
        cells = (named.get((kernel, tool), "nothing") for tool in TOOLS)
        print(f"| {kernel} | {' | '.join(cells)} |")
    expected = {(kernel, tool) for tool, kernel in PLANTED.items()}
    print(f"exit code {run.returncode}; each fault alone was named: {named.keys() == expected}")
    return int(named.keys() != expected)


def _named(text: str) -> dict[tuple[str, str], str]:
    """Return the errors in pytest's failures by kernel and tool."""
    named: dict[tuple[str, str], str] = {}
    kernel = ""
    for line in text.splitlines():
        if title := re.match(r"_+ .*\[(\w+)\] _+$", line):
            kernel = title[1]
        elif error := re.match(rf"({'|'.join(TOOLS)}): (.+)", line):
            key = kernel, error[1]
            named[key] = f"{named[key]}; {error[2]}" if key in named else error[2]
    return named


if __name__ == "__main__":
    sys.exit(main())
