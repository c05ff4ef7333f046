"""The seeds' quick harness, written from its description (S0, "Quick validation").

python quick_test_bench.py --summary-csv PATH

Every shape of SHAPES is checked, then timed by a loop of time.perf_counter around 50 calls with a
synchronisation before and after: once discarded, three times kept. One CSV row a shape; `_stddev`
is the population's over the three. There is no backward here: its columns stay empty.
"""

import argparse
import csv
import json
import statistics
import time

import torch
from kernels.products import product
from shapes import ON_GPU, SHAPES, draw

REPEATS, ITERATIONS = 3, 50
LEAST_SNR = 40.0
HEADER = [
    *("label", "B", "M", "N", "K", "Check"),
    *("Forward TFLOPS", "Forward TFLOPS_stddev", "Backward TFLOPS", "Backward TFLOPS_stddev"),
    *("Forward Time (ms)", "Backward Time (ms)", "out_snr", "da_snr", "db_snr"),
]


def synchronize():
    if ON_GPU:
        torch.cuda.synchronize()


def one_repeat(a, b):
    """Return the seconds of a call in a loop of ITERATIONS."""
    synchronize()
    start = time.perf_counter()
    for _ in range(ITERATIONS):
        product(a, b)
    synchronize()
    return (time.perf_counter() - start) / ITERATIONS


def row(m, n, k):
    a, b = draw(m, n, k)
    expected = a.double() @ b.double()
    error = (product(a, b).double() - expected).square().sum()
    snr = float(10 * torch.log10(expected.square().sum() / error))
    found = dict.fromkeys(HEADER, "")
    found |= {"label": f"M{m}_N{n}_K{k}", "B": 1, "M": m, "N": n, "K": k, "out_snr": snr}
    if snr < LEAST_SNR:
        return {**found, "Check": "FAIL", "Forward TFLOPS": "nan"}
    seconds = [one_repeat(a, b) for _ in range(1 + REPEATS)][1:]
    rates = [2 * m * n * k / s / 1e12 for s in seconds]
    return {
        **found,
        "Check": "PASS",
        "Forward TFLOPS": 2 * m * n * k / statistics.mean(seconds) / 1e12,
        "Forward TFLOPS_stddev": statistics.pstdev(rates),
        "Forward Time (ms)": statistics.mean(seconds) * 1e3,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--summary-csv", required=True)
    path = parser.parse_args().summary_csv
    if not ON_GPU:
        torch.set_num_threads(1)
    start = time.perf_counter()
    rows = [row(*shape) for shape in SHAPES]
    seconds = time.perf_counter() - start
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, HEADER, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(json.dumps({"measuring_seconds": seconds}))


if __name__ == "__main__":
    main()
