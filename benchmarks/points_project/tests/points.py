"""The cases of one half of the changes."""

from kernels import ops


def measure(kopt, number):
    name = ops.NAMES[number]
    kopt(
        ops.FUNCTIONS[number],
        inputs=lambda: ops.draw(name, kopt.device),
        reference=lambda *arguments: ops.reference(name, *(x.double() for x in arguments)),
        dims={"number": number},
        label=name,
        domain="declared shapes",
    )
