"""Read what a GPU says of itself: the source of facts that no vendor document prints.

python benchmarks/device_facts.py OUT.json [--pools] [--load]

With `--pools` also the time of three memory-bound kernels by the size of the pool of inputs, in
largest shared caches: a pool is cold enough if a larger one makes no call slower. About a minute.
With `--load` also the time of a product under load without rests, after a rest of two seconds.
"""

from __future__ import annotations

import datetime
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytest_kopt.measure.choice import prepare
from pytest_kopt.measure.cold import largest_cache_bytes

Kernel = Callable[[torch.Tensor], object]
#: 0 is one set of inputs, so warm; 2 is what kopt takes.
POOLS, BLOCKS = (0, 1, 2, 3, 5), 15
#: Rows of 4096 in bf16: sets of 4, 16 and 64 MiB.
ROWS = (512, 2048, 8192)
KERNELS: dict[str, Kernel] = {
    "copy": torch.clone,
    "row sums": lambda x: x.sum(-1),
    "RMS norm": lambda x: torch.nn.functional.rms_norm(x, (4096,)),
}


def facts() -> dict[str, object]:
    """Return the properties of the first GPU, with the versions that read them."""
    found = torch.cuda.get_device_properties(0)
    return {
        "device": found.name,
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "capability": f"{found.major}.{found.minor}",
        "sm_count": found.multi_processor_count,
        "l2_bytes": found.L2_cache_size,
        "memory_bytes": found.total_memory,
        "shared_memory_per_sm_bytes": found.shared_memory_per_multiprocessor,
        "shared_memory_per_block_optin_bytes": found.shared_memory_per_block_optin,
        "registers_per_sm": found.regs_per_multiprocessor,
        "max_threads_per_sm": found.max_threads_per_multi_processor,
        "warp_size": found.warp_size,
    }


def pools() -> list[dict[str, Any]]:
    """Return the median microseconds of a call by kernel, size of a set and size of the pool."""
    cache = largest_cache_bytes()
    times: dict[tuple[str, int, int], list[float]] = {}
    blocks = {}
    for rows in ROWS:
        size = rows * 4096 * 2
        most = math.ceil(max(POOLS) * cache / size) + 1
        sets = [torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(most)]
        for name, kernel in KERNELS.items():
            for pool in POOLS:
                count = max(1, math.ceil(pool * cache / size))
                # Each pool gets as many calls a graph, or launches would differ.
                calls = [
                    (lambda x=sets[place % count], kernel=kernel: kernel(x))
                    for place in range(most)
                ]
                blocks[name, rows, pool] = prepare("graph", "cuda", False, calls)
        # Turns in one order each: a clock that drifts changes all pools alike.
        for _ in range(BLOCKS):
            for key, block in blocks.items():
                times.setdefault(key, []).append(block.run() * 1e3)
        blocks.clear()
    return [
        {
            "kernel": name,
            "set_mib": rows * 4096 * 2 >> 20,
            "pool_in_caches": pool,
            "microseconds": round(statistics.median(each), 2),
            "lowest_to_highest": [round(min(each), 2), round(max(each), 2)],
        }
        for (name, rows, pool), each in times.items()
    ]


def under_load() -> dict[str, list[float]]:
    """Return a product's microseconds by its size: medians of each 0.05 s of three seconds."""
    found = {}
    for size in (4096, 8192):
        x, y = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        block = prepare("graph", "cuda", False, [lambda x=x, y=y: x @ y] * (2**16 // size))
        block.run()
        time.sleep(2)
        begin, parts = time.monotonic(), list[list[float]]()
        while (part := int((time.monotonic() - begin) / 0.05)) < 60:
            parts += [[] for _ in range(part + 1 - len(parts))]
            parts[part].append(block.run() * 1e3)
        found[str(size)] = [round(statistics.median(each), 1) for each in parts if each]
    return found


if __name__ == "__main__":
    found = facts()
    if "--load" in sys.argv:
        found["microseconds_under_load"] = under_load()
    if "--pools" in sys.argv:
        found |= {"largest_cache_bytes": largest_cache_bytes(), "pools": pools()}
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
