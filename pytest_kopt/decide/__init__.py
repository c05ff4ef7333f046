"""The decision: rows or series and a policy in, a verdict out; no clock, no disk.

`Ground` is the list of decisions that need no times (`grounds.py`). A session observes what is
missing, dishonest, wrong or equal, before the comparison and in it. The first ground decides.

Paired times are one table of series (`series.py`). A look at it makes claims: a mean of series
lies beyond a bound, at a level (`look.py`). `RULES` is the list of decisions, each with
the claims that have to be shown for it and its words (`paired.py`).

Both rules, the stored one and the paired one, ask in this order; the first that answers decides.

1.  The grounds. Another schema or case set is refused before (BadInput).
2.  SPLIT: a config class gained, another lost. This rule comes before the shape gate, since a class
    that lost 5 % has a case that did. Both roll back, but only this answer says what to do with the
    gain: specialise and dispatch.
3.  The shape gate: a core case lost 5 %. It holds in a round about one class too, so that a
    class's mean does not hide one of its cases.
4.  The aggregate fell, or the target class did. A round about one class is accepted for that class
    alone, but not where it lowers the whole: the chain of accepted rounds never falls. Stored,
    the chain's own noise is allowed for, because cases without a change are noisy too.
5.  A class lost without another's gain. The aggregate can still be up by a little; one class does
    not pay for the others.
6.  Paired, a conclusion that shows against the current best but not against its copy (the A/A
    control) takes more replicates; at the last look it is INCOMPLETE.
7.  Paired, more replicates are due while any metric may still show something.
8.  The figure that has to improve did: the target class where the notes name one, else the
    aggregate. It gained more than the minimum and, where stored, re-measurements inside the noise
    band confirm it. Slower cases that all this lets through are noted first (ACCEPTED_WITH_NOTE).
    So is a fall of the figure of all cases that does not decide: the weighted time, or the
    geometric mean.
9.  Nothing of this shows (INCONCLUSIVE). An equal version is kept for a stated benefit then;
    paired, equal is an interval inside the policy's noise.
10. Three facts count against a version that would be kept (`conclusion.py`). INCONCLUSIVE: the
    examination doubts its gain. REPAIR, or a note if the cause is stated: the same files failed
    before. A note: it supports less than the other version.

Every pipeline hands in observations and facts. Nothing outside of this folder chooses or changes a
decision.

Lost and gained: stored, a class's change reaches the policy's noise. Paired, a gain's interval lies
above zero and a loss's beyond the known bias (families of classes by Holm). An interval holds the
change against both copies of the current best. Nothing is accepted
while a class may have lost the policy's noise, or seems to have lost. So a kernel that dispatches
and moves one class only is accepted: every other class holds. One class alone is all cases and adds
no question.
"""
