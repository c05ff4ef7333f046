"""Read what a GPU says of itself: the source of facts that no vendor document prints.

python benchmarks/device_facts.py OUT.json
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import torch


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


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(facts(), indent=1) + "\n")
