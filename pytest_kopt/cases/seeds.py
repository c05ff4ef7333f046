"""Seeds: secret while a session runs, recorded afterwards, enough to repeat every case."""

from __future__ import annotations

import hashlib
import random
import secrets
import sys


def fresh_session_seed() -> int:
    """Return a seed that nothing in the session can predict."""
    return secrets.randbits(63)


def derive(session_seed: int, nodeid: str, purpose: str) -> int:
    """Return the seed of one purpose of one case (63 bits of a SHA-256)."""
    digest = hashlib.sha256(f"{session_seed}:{nodeid}:{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def drawn_so_far(device: str) -> bytes:
    """Return the states of torch's global generators, which tell whether a call drew from them."""
    import torch

    states = [torch.default_generator.get_state()]
    if device == "cuda":
        states.append(torch.cuda.get_rng_state())
    return b"".join(state.numpy().tobytes() for state in states)


def seed_everything(seed: int) -> None:
    """Seed random, torch, and numpy where it is loaded."""
    import torch

    random.seed(seed)
    # torch.manual_seed does the same, but imports torch's compiler first: seconds in every process.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
