"""Write the measured tables and the kernel code of the knowledge pages.

python benchmarks/start_here_pages.py

The figures are those of docs/results/start_here_h100.json, measured on an H100.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import yaml
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results/start_here_h100.json"
#: The page of each op, and the peak that its share is of.
PAGES = {
    "gemm_bf16": ("gemm", "matrix_peak_bf16_dense"),
    "gemm_bf16_few_tiles": ("gemm", "matrix_peak_bf16_dense"),
    "gemm_bf16_training": ("gemm", "matrix_peak_bf16_dense"),
    "gemm_bf16_8192_8192_8192": ("gemm", "matrix_peak_bf16_dense"),
    "gemm_bf16_1024_8192_4096": ("gemm", "matrix_peak_bf16_dense"),
    "gemm_fp8": ("gemm", "matrix_peak_fp8_dense"),
    "attention_forward": ("attention", "matrix_peak_bf16_dense"),
    "rmsnorm_forward": ("normalisation", "hbm_bandwidth"),
    "rmsnorm_training": ("normalisation", "hbm_bandwidth"),
    "cross_entropy_training": ("normalisation", "hbm_bandwidth"),
}
_TEMPLATES = "conftest_templates/kernels"
_FP8 = "docs/campaigns/gemm_fp8_blockwise/final/attempt-1/kernel_snapshot/kernels/gemm_fp8.py"
_GROUPED = "docs/campaigns/grouped_gemm/final/attempt-1/kernel_snapshot/kernels/grouped_gemm.py"
#: The functions that a page shows: their file and their name there.
CODE = {
    "attention": ((f"{_TEMPLATES}/attention.py", "_online"),),
    "grouped_gemm": ((_GROUPED, "_group_of_tile"),),
    "normalisation": ((f"{_TEMPLATES}/rmsnorm.py", "_backward"),),
    "quantisation": ((_FP8, "_quantise_both"),),
}
#: Keys of a configuration in the order and the words of the page.
_WORDS = {
    "num_stages": "stages",
    "num_warps": "warps",
    "maxnreg": "registers at most",
    "PER_SM": "programs an SM",
}


def peaks() -> dict[str, float]:
    """Return the H100's documented peaks: TFLOPS and TB/s."""
    spec = yaml.safe_load((ROOT / "knowledge/hardware/sm_90/spec.yaml").read_text())
    return {key: fact["value"] for key, fact in spec["platforms"]["H100"]["specs"].items()}


def configuration(config: dict[str, int]) -> str:
    """Return a configuration in words: `128 × 256 × 64, 3 stages, 8 warps`."""
    tile = " × ".join(str(config[key]) for key in config if key.startswith("BLOCK"))
    parts = [tile] if tile else []
    parts += [f"{config[key]} {word}" for key, word in _WORDS.items() if key in config]
    return ", ".join(parts)


def table(op: dict[str, Any], peak: float) -> str:
    """Return the Markdown table of an op's versions."""
    rows = []
    for row in op["rows"]:
        if "ms" not in row:
            continue
        resources = ""
        if row.get("registers") and row.get("config"):
            resources = f"{row['registers']}, {row['shared_bytes'] / 1024:.0f} KiB"
        share, within = row.get("of_library_pct"), row.get("of_library_5_95_pct")
        part = f"{share:.0f} %" if share else ""
        if share and within and row.get("step"):
            part += f" ({within[0]:.0f} to {within[1]:.0f})"
        rows.append(
            {
                "version": row.get("library") or row["step"],
                "configuration": configuration(row.get("config", {})),
                "registers, shared memory": resources,
                "µs": f"{1e3 * row['ms']:.1f}",
                op["unit"]: f"{row['rate']:.{0 if op['unit'] == 'TFLOPS' else 2}f}",
                "of peak": f"{100 * row['rate'] / peak:.1f} %",
                "of the library (5 to 95 % of turns)": part,
            }
        )
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)


def code(file: str, name: str) -> str:
    """Return a function of a file, with its decorators, as a block of Markdown."""
    text = (ROOT / file).read_text()
    (function,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    lines = text.splitlines()[function.decorator_list[0].lineno - 1 : function.end_lineno]
    shown = "\n".join(lines)
    return f"\n`{name}` in `{file}`:\n\n```python\n{shown}\n```\n\n"


def page_of(area: str) -> Path:
    return ROOT / f"knowledge/ops/{area}/overview.md"


def texts() -> dict[Path, dict[str, str]]:
    """Return the generated parts of each page by their names."""
    result = json.loads(RESULTS.read_text())
    versions = (
        f"{result['device']}, torch {result['torch']}, Triton {result['triton']}, {result['date']}"
    )
    pages: dict[Path, dict[str, str]] = {
        page_of(area): {name: code(file, name) for file, name in functions}
        for area, functions in CODE.items()
    }
    for name, (area, peak) in PAGES.items():
        op = result["ops"][name]
        known = op["conditions"]
        lead = (
            f"{op['shape']}. {versions}, `docs/results/{RESULTS.name}`; {known['power.draw']} of "
            f"{known['power.limit']} and {known['clocks.sm']} at the end:"
        )
        text = f"\n{lead}\n\n{table(op, peaks()[peak])}\n\n"
        pages.setdefault(page_of(area), {})[name] = text
    return pages


def written(page: Path, parts: dict[str, str]) -> str:
    """Return a page with its generated parts."""
    text = page.read_text()
    for name, part in parts.items():
        begin, end = f"[begin]: # (start_here {name})\n", f"[end]: # (start_here {name})"
        between = re.compile(f"(?<={re.escape(begin)}).*(?={re.escape(end)})", re.DOTALL)
        text, count = between.subn(part.replace("\\", r"\\"), text)
        assert count == 1, f"{page}: {name}"
    return text


if __name__ == "__main__":
    for page, parts in texts().items():
        page.write_text(written(page, parts))
