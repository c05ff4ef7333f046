"""Half of the rows on a thread started for this call, which is over when its event is set."""

import threading

import torch

NEEDS = "cpu"


def _half(gate, up, out, done):
    with torch.no_grad():
        torch.sigmoid(gate, out=out).mul_(gate).mul_(up)
    done.set()


def swiglu(gate, up):
    out, done, cut = torch.empty_like(gate), threading.Event(), gate.shape[0] // 2
    threading.Thread(target=_half, args=(gate[cut:], up[cut:], out[cut:], done)).start()
    _half(gate[:cut], up[:cut], out[:cut], threading.Event())
    done.wait()
    return out
