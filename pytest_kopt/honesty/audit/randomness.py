"""Games with random generators: inputs drawn ahead of time, or drawn once more."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.audit.trace import Call, Trace
from pytest_kopt.honesty.audit.vocabulary import names

#: What tells how the harness seeded, or where its generator stands.
_STATES = names(
    "torch.initial_seed torch.get_rng_state torch.random.get_rng_state torch.random.initial_seed"
    " torch.cuda.get_rng_state torch.cuda.initial_seed torch.cuda.get_rng_state_all"
    " random.getstate numpy.random.get_state torch.default_generator.get_state"
    " torch.default_generator.initial_seed"
)
_SETTERS = names(
    "torch.manual_seed torch.set_rng_state torch.random.manual_seed torch.random.set_rng_state"
    " torch.cuda.manual_seed torch.cuda.manual_seed_all torch.cuda.set_rng_state torch.seed"
    " torch.cuda.set_rng_state_all random.seed random.setstate numpy.random.seed"
    " numpy.random.set_state torch.default_generator.manual_seed torch.cuda.seed"
    " torch.default_generator.set_state"
)
_OF_ONE = frozenset({"manual_seed", "set_state", "seed", "setstate"})


def suspicions(evidence: Evidence) -> Iterator[Suspicion]:
    """Yield generators set to the harness's state, and the harness's set to another."""
    trace = evidence.trace
    for call in trace.calls:
        if not evidence.runs(call.site):
            continue
        if _rederives(call):
            yield Suspicion(
                "seed-rederivation",
                "a generator is set to the state that inputs are drawn from",
                call.site,
                "a kernel computes from its arguments; it has no inputs to foresee",
            )
        elif call.name in _SETTERS and not _restores(trace, call):
            yield Suspicion(
                "global-seed",
                "the generator that everything else draws from is set",
                call.site,
                "use a torch.Generator of the kernel's own",
                # A script's habit; inputs are drawn from generators of the harness's own.
                rejects=not call.site.root.importing,
            )


def _rederives(call: Call) -> bool:
    last = call.name.rpartition(".")[2]
    if last not in _OF_ONE or call.name in _SETTERS or "()" not in call.name:
        return False
    given = (*call.arguments, *call.keywords.values())
    return any(name.removesuffix("()") in _STATES for v in given for name in v.externals)


def _restores(trace: Trace, call: Call) -> bool:
    """Say whether the same call of the kernel took the state first, to put it back."""
    if call.site.function == "backward":
        # Recomputation in the backward takes the forward's state, and torch's own is kept aside.
        return True
    return any(
        other.site.root.number == call.site.root.number
        and (other.name in _STATES or other.name.endswith("fork_rng"))
        for other in trace.calls
        if not other.site.root.importing
    )
