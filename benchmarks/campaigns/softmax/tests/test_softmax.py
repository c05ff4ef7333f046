import pytest
import torch
from kernels.softmax import softmax


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("columns", [1024, 2048, 4096])
def test_softmax(kopt, columns):
    kopt(
        softmax,
        inputs=lambda: (torch.randn(8192, columns, device=kopt.device),),
        reference=lambda x: x.double().softmax(-1),
        dims={"rows": 8192, "columns": columns},
        nbytes=2 * 4 * 8192 * columns,
    )
