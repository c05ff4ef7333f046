"""A POSIX timer interrupts whoever runs outside this kernel and wastes three quarters of his time.

The kernel itself is the slow one there was; only the others have become slower.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

NEEDS = "cpu"
REQUIRES = "gcc"
KIND = "timer-signal-drag"
GAIN = "none"  # the plain harness has measured the baseline before it imports anything

SOURCE = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <time.h>
static timer_t timer;
static volatile int inside;
static long now(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static void drag(int number) {
    if (inside) return;
    for (long end = now() + 150000; now() < end;);
}
static void set(long first) {
    struct itimerspec every = {.it_interval = {0, first}, .it_value = {0, first}};
    timer_settime(timer, 0, &every, 0);
}
void install(void) {
    struct sigaction act = {.sa_handler = drag, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = 40};
    sigaction(40, &act, 0);
    timer_create(CLOCK_MONOTONIC, &event, &timer);
}
void enter(void) { inside = 1; set(0); }
void leave(void) { inside = 0; set(200000); }
"""


def _build():
    folder = Path(tempfile.mkdtemp())
    source, library = folder / "drag.c", folder / "drag.so"
    source.write_text(SOURCE)
    flags = ["-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-lrt"]
    subprocess.run(["gcc", *flags], check=True)
    return ctypes.CDLL(str(library))


_library = _build()
_library.install()


def row_sum(x):
    _library.enter()
    out = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
    for i in range(x.shape[0]):
        out[i] = x[i].sum()
    _library.leave()
    return out
