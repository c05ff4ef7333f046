"""The processes of a comparison on one device: which are started, and how they end."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from pytest_kopt.paired.arms import ONE_PROCESS, Arms
from pytest_kopt.paired.nearby import Nearby
from pytest_kopt.paired.replica import Replica
from pytest_kopt.paired.verifier_process import Verifier
from pytest_kopt.processes.child import Children
from pytest_kopt.processes.remote_host import Place

#: Replicas that are there at once, so that one starts up while another is measured; on the CPU it
#: would disturb that.
AT_ONCE_ON_GPU = 2


class Pool:
    """Replicas in the order in which they are measured, and the processes that run with them.

    These are the verifier, the process that holds the incumbent alone, and the processes that try
    shapes near the declared ones.
    """

    def __init__(self, arms: Arms, place: Place) -> None:
        self._arms = arms
        self.place = place
        self.replicas: list[Replica] = []
        self.nearby: Nearby | None = None
        #: How many replicas may be there at once; one where they did not find the memory they need.
        self.room = AT_ONCE_ON_GPU
        #: How many are started before they are needed, the next one included.
        self.ahead = 1
        self._leaving: Replica | None = None
        self._verifier: Verifier | None = None
        #: The incumbent alone, where it was started before it was known to be needed.
        self._spare = Children()

    @property
    def is_crowded(self) -> bool:
        """Whether the first replica shares the device's memory with other processes."""
        return bool(self.replicas[1:] or self._spare.children or self.nearby is not None)

    def fill(self, measured: int, most: int) -> None:
        """Start the next replicas; `measured` ones are there, and `most` more may be."""
        while len(self.replicas) < max(1, min(self.room, self.ahead, most)):
            self.start(self.place, measured + len(self.replicas))

    def start(self, place: Place, number: int) -> Replica:
        """Start a replica of this number in the comparison."""
        replica = self._arms.start(place, self._judge(), number)
        self.replicas.append(replica)
        return replica

    def start_spare(self) -> None:
        """Start the incumbent alone before a gain is known, where another process disturbs none."""
        if self.ahead > 1 and self._arms.asks_more and not self._spare.children:
            self._spare.children.append(self._arms.start_alone(self.place))

    def join_alone(self, replica: Replica) -> bool:
        """Have the incumbent alone timed next to a replica; say whether that can be."""
        if not (self._arms.asks_more and self.room > 1 and replica.how == ONE_PROCESS):
            return False
        spare = self._spare.children
        replica.join(spare.pop() if spare else self._arms.start_alone(self.place))
        return True

    def start_nearby(self, ids: list[str]) -> None:
        self.nearby = self._arms.start_nearby(self.place._replace(ids=ids))

    def end_nearby(self) -> None:
        if self.nearby is not None:
            self.nearby.end()
            self.nearby = None

    def dismiss(self, replica: Replica) -> None:
        """Have a measured replica end while others go on."""
        self.replicas.remove(replica)
        self.await_leaving()
        replica.dismiss()
        self._leaving = replica

    def await_leaving(self) -> None:
        """Wait for the last replica to be gone: what ends on a device disturbs a timing there."""
        if self._leaving:
            self._leaving.stop()
            self._leaving = None

    def kill(self) -> None:
        """Kill all of them, from whatever thread."""
        running = (self.nearby, self._verifier, self._spare, *self.replicas)
        _kill([children for children in running if children is not None])

    def stop(self) -> None:
        """End all but the verifier: one that loads or waits for its turn would not listen."""
        self.end_nearby()
        running = [*self.replicas, self._spare]
        _kill(running)
        self.await_leaving()
        for children in running:
            children.stop()
        self.replicas, self._spare = [], Children()

    def close(self) -> None:
        self.stop()
        self._end_verifier()

    def _judge(self) -> Verifier:
        """Return what judges the replicas; one that died is replaced."""
        if self._verifier is None or self._verifier.has_died:
            self._end_verifier()
            self._verifier = self._arms.start_verifier(self.place)
        return self._verifier

    def _end_verifier(self) -> None:
        if self._verifier is not None:
            self._verifier.end()
            self._verifier = None


def _kill(running: Collection[Children]) -> None:
    """Kill them at once: a process takes a while to let go of its GPU."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda children: children.kill(), running))
