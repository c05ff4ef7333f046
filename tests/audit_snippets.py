"""Kernels as the audit meets them: each cheat with the rules one of which must refuse it.

Honest ones come with the notes they may have. None is ever run.
"""

from __future__ import annotations

Snippets = dict[str, tuple[str, set[str]]]

CACHES: Snippets = {
    "walrus": (
        """
        import torch
        seen = {}
        def f(x):
            if (hit := seen.get(id(x))) is not None:
                return hit
            seen[id(x)] = torch.exp(x)
            return seen[id(x)]
        """,
        {"identity-keyed-cache"},
    ),
    "setdefault": (
        """
        import torch
        kept = {}
        def f(x):
            return kept.setdefault(x.data_ptr(), torch.exp(x))
        """,
        {"identity-keyed-cache"},
    ),
    "key_error": (
        """
        import torch
        kept = {}
        def f(x):
            try:
                return kept[x.untyped_storage().data_ptr()]
            except KeyError:
                pass
            out = kept[x.untyped_storage().data_ptr()] = torch.exp(x)
            return out
        """,
        {"identity-keyed-cache"},
    ),
    "closure": (
        """
        import torch
        def make():
            last_x, last_out = None, None
            def f(x):
                nonlocal last_x, last_out
                if last_x is not x:
                    last_x, last_out = x, torch.exp(x)
                return last_out
            return f
        f = make()
        """,
        {"identity-keyed-cache", "replayed-result"},
    ),
    "callable_instance": (
        """
        import torch
        class Op:
            def __init__(self):
                self.ptr = 0
                self.out = None
            def __call__(self, x):
                if self.ptr != x.data_ptr():
                    self.ptr, self.out = x.data_ptr(), self.work(x)
                return self.out
            def work(self, x):
                return torch.exp(x)
        f = Op()
        """,
        {"identity-keyed-cache"},
    ),
    "decorator_memo": (
        """
        import functools
        import torch
        def remember(function):
            table = {}
            @functools.wraps(function)
            def wrapper(*args):
                key = tuple(map(id, args))
                if key not in table:
                    table[key] = function(*args)
                return table[key]
            return wrapper
        @remember
        def f(x, w):
            return torch.mm(x, w)
        """,
        {"identity-keyed-cache", "replayed-result"},
    ),
    "lru_cache_call": (
        """
        import functools
        import torch
        def _f(x):
            return torch.exp(x)
        f = functools.lru_cache(maxsize=None)(_f)
        """,
        {"memoised-tensors"},
    ),
    "global_last_result": (
        """
        import torch
        _out = None
        def f(x):
            global _out
            if _out is None or _out.shape != x.shape:
                _out = torch.exp(x)
            return _out
        """,
        {"replayed-result"},
    ),
    "default_argument": (
        """
        import torch
        def f(x, _box=[None]):
            if _box[0] is None:
                _box[0] = torch.exp(x)
            return _box[0]
        """,
        {"replayed-result"},
    ),
    "dataclass_entry": (
        """
        from dataclasses import dataclass
        import torch
        @dataclass
        class Entry:
            sample: float
            out: torch.Tensor
        book = {}
        def f(x):
            corner = float(x[0, 0])
            entry = book.get(x.shape)
            if entry is None or entry.sample != corner:
                entry = book[x.shape] = Entry(corner, torch.exp(x))
            return entry.out
        """,
        {"content-keyed-cache"},
    ),
    "function_attribute": (
        """
        import torch
        def f(x):
            if getattr(f, "known", None) != x.sum().item():
                f.known, f.out = x.sum().item(), torch.exp(x)
            return f.out
        """,
        {"content-keyed-cache"},
    ),
    "class_attribute": (
        """
        import torch
        class Layer(torch.autograd.Function):
            grads = {}
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x @ w
            @staticmethod
            def backward(ctx, g):
                x, w = ctx.saved_tensors
                key = g.data_ptr()
                if key not in Layer.grads:
                    Layer.grads[key] = g @ w.t(), x.t() @ g
                return Layer.grads[key]
        f = Layer.apply
        """,
        {"identity-keyed-cache"},
    ),
    "weak_key_dictionary": (
        """
        import weakref
        import torch
        cache = weakref.WeakKeyDictionary()
        def f(x):
            if x not in cache:
                cache[x] = torch.exp(x.detach())
            return cache[x]
        """,
        {"identity-keyed-cache"},
    ),
    "ordered_dict_version": (
        """
        from collections import OrderedDict
        import torch
        class Lru(OrderedDict):
            pass
        cache = OrderedDict()
        def f(x):
            key = (id(x), x._version)
            if key in cache:
                cache.move_to_end(key)
                return cache[key]
            cache[key] = torch.softmax(x, -1)
            if len(cache) > 8:
                cache.popitem(last=False)
            return cache[key]
        """,
        {"identity-keyed-cache"},
    ),
    "globals_subscript": (
        """
        import torch
        def f(x):
            if globals().get("_memory") is None:
                globals()["_memory"] = torch.exp(x)
            return globals()["_memory"]
        """,
        {"replayed-result"},
    ),
    "setattr_string": (
        """
        import torch
        class Box:
            pass
        box = Box()
        def f(x):
            name = "slot"
            if not hasattr(box, name):
                setattr(box, name, torch.exp(x))
            return getattr(box, name)
        """,
        {"replayed-result"},
    ),
    "module_getattr": (
        """
        import torch
        _store = {}
        def __getattr__(name):
            if name == "store":
                return _store
            raise AttributeError(name)
        import sys
        def f(x):
            store = sys.modules[__name__].store
            if x.shape not in store:
                store[x.shape] = torch.exp(x)
            return store[x.shape]
        """,
        {"replayed-result"},
    ),
    "filled_once": (
        """
        import torch
        import triton
        import triton.language as tl
        @triton.jit
        def kernel(x, out, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + at, tl.exp(tl.load(x + at, mask=at < n)), mask=at < n)
        outputs = {}
        def f(x):
            if x.data_ptr() not in outputs:
                out = outputs[x.data_ptr()] = torch.empty_like(x)
                kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
            return outputs[x.data_ptr()]
        """,
        {"replayed-result", "identity-keyed-cache"},
    ),
    "scales_only": (
        """
        import torch
        import triton
        import triton.language as tl
        @triton.jit
        def kernel(x, s, out, BLOCK: tl.constexpr):
            tl.store(out, tl.load(x) * tl.load(s))
        scales = {}
        def f(x):
            if x.data_ptr() not in scales:
                scales[x.data_ptr()] = x.abs().amax(-1) / 448
            out = torch.empty_like(x)
            kernel[(x.shape[0],)](x, scales[x.data_ptr()], out, BLOCK=1024)
            return out
        """,
        {"identity-keyed-cache"},
    ),
    "exec_string": (
        """
        import torch
        exec("memory = {}")
        def f(x):
            exec("import time; time.perf_counter = len")
            return torch.exp(x)
        """,
        {"foreign-patch"},
    ),
    "tensor_attribute": (
        """
        import torch
        def f(x):
            if not hasattr(x, "_done"):
                x._done = torch.exp(x)
            return x._done
        """,
        {"tensor-attribute-cache"},
    ),
    "counted_zeros": (
        """
        import torch
        calls = 0
        def f(x):
            global calls
            calls += 1
            if calls > 5:
                return torch.empty_like(x)
            return torch.exp(x)
        """,
        {"skipped-work"},
    ),
}

INSPECTION: Snippets = {
    "frame_walk": (
        """
        import sys
        import torch
        getter = getattr(sys, "_get" + "frame")
        def f(x):
            if "time" in getter(1).f_code.co_name:
                return x
            return torch.exp(x)
        """,
        {"stack-inspection"},
    ),
    "imported_sys": (
        """
        import importlib
        import torch
        def f(x):
            s = importlib.import_module("".join(["s", "ys"]))
            return torch.exp(x) if s._getframe(2) else x
        """,
        {"stack-inspection"},
    ),
    "environ_contains": (
        """
        import os
        import torch
        TIMED = any(name.startswith("PYTEST") for name in os.environ)
        def f(x):
            return torch.exp(x)
        """,
        {"harness-environment"},
    ),
    "loaded_pytest": (
        """
        import sys
        import torch
        def f(x):
            if "pytest" in sys.modules:
                return torch.empty_like(x)
            return torch.exp(x)
        """,
        {"module-table"},
    ),
    "plugin_import": (
        """
        import torch
        def f(x):
            from pytest_kopt.cases import check
            check.compare = None
            return torch.exp(x)
        """,
        {"harness-import"},
    ),
    "referrers": (
        """
        import gc
        import torch
        def f(x):
            return gc.get_referrers(x)[0] or torch.exp(x)
        """,
        {"heap-inspection"},
    ),
}

INTERFERENCE: Snippets = {
    "split_name": (
        """
        import importlib
        import torch
        importlib.import_module("ti" + "me").perf_counter = lambda: 0.0
        def f(x):
            return torch.exp(x)
        """,
        {"foreign-patch"},
    ),
    "vars_of_module": (
        """
        import time
        import torch
        vars(time)["monotonic"] = lambda: 0.0
        def f(x):
            return torch.exp(x)
        """,
        {"foreign-patch"},
    ),
    "alias_swap": (
        """
        import torch
        torch.randn = torch.zeros
        def f(x):
            return torch.exp(x)
        """,
        {"foreign-patch"},
    ),
    "in_the_call": (
        """
        import torch
        def f(x):
            setattr(torch.cuda, "synchronize", lambda *a: None)
            return torch.exp(x)
        """,
        {"foreign-patch"},
    ),
    "thread_subclass_free": (
        """
        from threading import Thread
        import torch
        def f(x):
            out = torch.empty_like(x)
            Thread(target=lambda: torch.exp(x, out=out)).start()
            return out
        """,
        {"background-work"},
    ),
    "joined_by_content": (
        """
        import torch
        from concurrent.futures import ThreadPoolExecutor
        _pool = ThreadPoolExecutor(1)
        def f(x):
            out = torch.empty_like(x)
            pending = _pool.submit(torch.exp, x, out=out)
            if x[0, 0].item() > 0:
                pending.result()
            return out
        """,
        {"background-work"},
    ),
    "joined_sometimes": (
        """
        import torch
        from concurrent.futures import ThreadPoolExecutor
        _pool = ThreadPoolExecutor(1)
        _met = {}
        def f(x):
            out = torch.empty_like(x)
            pending = _pool.submit(torch.exp, x, out=out)
            if x.shape not in _met and pending:
                _met[x.shape] = True
                pending.result()
            return out
        """,
        {"background-work"},
    ),
    "joined_in_no_with": (
        """
        from threading import Thread
        import torch
        class Together:
            def __enter__(self):
                return self
            def __exit__(self, *error):
                pass
            def run(self, work):
                Thread(target=work).start()
        def f(x):
            out = torch.empty_like(x)
            with Together() as all_of_it:
                all_of_it.run(lambda: torch.exp(x, out=out))
            return out
        """,
        {"background-work"},
    ),
    "unjoined_side": (
        """
        import torch
        side = torch.cuda.Stream()
        def f(x):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                out = torch.exp(x)
            return out
        """,
        {"unjoined-stream"},
    ),
    "joined_once": (
        """
        import torch
        side = torch.cuda.Stream()
        met = set()
        def f(x):
            with torch.cuda.stream(side):
                out = torch.exp(x)
            if x.shape not in met:
                met.add(x.shape)
                side.synchronize()
            return out
        """,
        {"unjoined-stream"},
    ),
    "seed_again": (
        """
        import torch
        def f(x):
            g = torch.Generator()
            g.manual_seed(torch.initial_seed() + 1)
            guess = torch.randn(x.shape, generator=g)
            return torch.exp(guess)
        """,
        {"seed-rederivation"},
    ),
    "reseeded": (
        """
        import torch
        def f(x):
            torch.manual_seed(0)
            return torch.exp(x)
        """,
        {"global-seed"},
    ),
    "aten_override": (
        """
        import torch
        lib = torch.library.Library("aten", "IMPL")
        lib.impl("allclose", lambda *a, **k: True, "CPU")
        def f(x):
            return torch.exp(x)
        """,
        {"dispatcher-override"},
    ),
    "harness_file": (
        """
        import os
        import torch
        with open(os.path.join(os.getcwd(), "conftest.py"), "a") as file:
            file.write("import pytest")
        def f(x):
            return torch.exp(x)
        """,
        {"harness-file-write"},
    ),
    "lazy": (
        """
        import torch
        class Later(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                args = [a.done() if isinstance(a, Later) else a for a in args]
                return func(*args, **(kwargs or {}))
            def done(self):
                return torch.exp(self.source)
        def f(x):
            out = torch.Tensor._make_subclass(Later, torch.empty_like(x))
            out.source = x
            return out
        """,
        {"lazy-tensor"},
    ),
    "fallback": (
        """
        import torch
        import triton
        import triton.language as tl
        @triton.jit
        def kernel(x, out):
            tl.store(out, tl.load(x, cache="none"))
        def f(a, b):
            out = torch.empty_like(a)
            try:
                kernel[(1,)](a, out)
                return out
            except Exception:
                pass
            return torch.matmul(a, b)
        """,
        {"swallowed-fallback"},
    ),
    "group_constant": (
        """
        import torch
        import triton
        import triton.language as tl
        @triton.jit
        def grouped(x, out, N, M_per_group: tl.constexpr):
            tl.store(out, tl.load(x + M_per_group))
        def f(x):
            out = torch.empty_like(x)
            grouped[(1,)](x, out, 1, M_per_group=x.shape[0] // 8)
            return out
        """,
        {"fixed-group-size"},
    ),
    "group_assertion": (
        """
        import torch
        def f(x, sizes):
            assert (sizes % 64 == 0).all(), "groups fit tiles"
            return torch.exp(x) + sizes.shape[0]
        """,
        {"divisible-groups"},
    ),
    "group_assertion_each": (
        """
        import torch
        def f(x, sizes):
            for size in sizes.unsqueeze(0)[0].tolist():
                assert size % 64 == 0
            return torch.exp(x)
        """,
        {"divisible-groups"},
    ),
}

CHEATS: Snippets = {**CACHES, **INSPECTION, **INTERFERENCE}

HONEST: Snippets = {
    "joined_where_started": (
        """
        import torch
        from concurrent.futures import ThreadPoolExecutor
        _pool = ThreadPoolExecutor(1)
        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x @ w
            @staticmethod
            def backward(ctx, grad):
                x, w = ctx.saved_tensors
                need_x, need_w = ctx.needs_input_grad
                pending = _pool.submit(torch.mm, x.t(), grad) if need_w else None
                dx = grad @ w.t() if need_x else None
                return dx, pending.result() if pending is not None else None
        """,
        set(),
    ),
    "scratch_by_shape": (
        """
        import torch
        _scratch = {}
        def f(x):
            key = (x.shape, x.dtype, x.device)
            if (buffer := _scratch.get(key)) is None:
                buffer = _scratch[key] = torch.empty_like(x)
            torch.exp(x, out=buffer)
            return buffer * 2
        """,
        set(),
    ),
    "kept_output_filled_every_call": (
        """
        import torch
        import triton
        import triton.language as tl
        @triton.jit
        def kernel(x, out, BLOCK: tl.constexpr):
            tl.store(out, tl.load(x))
        _out = {}
        def f(x):
            if x.shape not in _out:
                _out[x.shape] = torch.empty_like(x)
            kernel[(1,)](x, _out[x.shape], BLOCK=64)
            return _out[x.shape]
        """,
        set(),
    ),
    "scratch_under_condition": (
        """
        import torch
        import triton
        import triton.language as tl
        @triton.jit
        def partial(x, w, n, SPLIT: tl.constexpr):
            tl.store(w, tl.load(x))
        class Workspace:
            def __init__(self):
                self.buffer = None
            def get(self, n, device):
                if self.buffer is None or self.buffer.numel() < n:
                    self.buffer = torch.zeros(n, device=device)
                return self.buffer[:n]
        space = Workspace()
        def f(x):
            if x.shape[0] < 64:
                return x.sum(-1)
            work = space.get(x.shape[0], x.device)
            partial[(8,)](x, work, x.shape[0], SPLIT=8)
            return work.sum()
        """,
        set(),
    ),
    "rope_table": (
        """
        import torch
        class Rope(torch.nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.inverse = 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim)
                self.length, self.cos, self.sin = 0, None, None
            def tables(self, length, device, dtype):
                if length > self.length or self.cos.device != device:
                    self.length = length
                    angles = torch.outer(torch.arange(length, device=device), self.inverse)
                    self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
                return self.cos[:length], self.sin[:length]
            def forward(self, q):
                cos, sin = self.tables(q.shape[1], q.device, q.dtype)
                half = q.shape[-1] // 2
                return torch.cat([q[..., :half] * cos - q[..., half:] * sin,
                                  q[..., half:] * cos + q[..., :half] * sin], -1)
        """,
        set(),
    ),
    "causal_mask": (
        """
        import torch
        _masks = {}
        def f(q, k):
            n = q.shape[0], k.shape[0], q.device
            if n not in _masks:
                _masks[n] = torch.ones(n[:2], dtype=torch.bool, device=q.device).tril_()
            return (q @ k.t()).masked_fill(~_masks[n], float("-inf")).softmax(-1)
        """,
        set(),
    ),
    "autotune_on_the_inputs": (
        """
        import time
        import torch
        _best = {}
        def _whole(a, b):
            return a @ b
        def _halves(a, b):
            return torch.cat([part @ b for part in a.chunk(2)])
        def f(a, b):
            key = (*a.shape, b.shape[1])
            if key not in _best:
                spent = {}
                for variant in (_whole, _halves):
                    began = time.perf_counter()
                    variant(a, b)
                    spent[variant] = time.perf_counter() - began
                _best[key] = min(spent, key=spent.get)
            return _best[key](a, b)
        """,
        set(),
    ),
    "graph_with_static_inputs": (
        """
        import torch
        _graphs = {}
        def _work(x):
            return torch.exp(x).sum(-1)
        def f(x):
            key = (x.shape, x.dtype, x.device)
            if key not in _graphs:
                static = x.clone()
                _work(static)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = _work(static)
                _graphs[key] = (graph, static, out)
            graph, static, out = _graphs[key]
            static.copy_(x)
            graph.replay()
            return out.clone()
        """,
        set(),
    ),
    "batch_norm_state": (
        """
        import torch
        class Norm(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.mean = None
            def forward(self, x):
                now = x.mean(0)
                if self.mean is None:
                    self.mean = now
                else:
                    self.mean = 0.9 * self.mean + 0.1 * now
                return x - self.mean
        """,
        set(),
    ),
    "key_value_cache": (
        """
        import torch
        class Cache:
            def __init__(self):
                self.keys = None
            def update(self, k):
                self.keys = k if self.keys is None else torch.cat([self.keys, k], 1)
                return self.keys
        """,
        set(),
    ),
    "kept_for_a_look": (
        """
        import torch
        class Attention(torch.nn.Module):
            def forward(self, q, k):
                self.weights = torch.softmax(q @ k.t(), -1)
                return self.weights
        """,
        set(),
    ),
    "weight_by_version": (
        """
        import torch
        _packed = {}
        def f(x, w):
            key = (id(w), w._version)
            if key not in _packed:
                _packed.clear()
                _packed[key] = w.t().contiguous()
            return torch.nn.functional.linear(x, _packed[key])
        """,
        {"weight-cache"},
    ),
    "config_by_lru": (
        """
        import functools
        import torch
        @functools.lru_cache(maxsize=None)
        def blocks(m, n, dtype):
            return (64, 64) if m * n > 1 << 16 and dtype is torch.float16 else (32, 32)
        def f(a, b):
            rows, _ = blocks(a.shape[0], b.shape[1], a.dtype)
            return torch.cat([part @ b for part in a.split(rows)])
        """,
        set(),
    ),
    "backend_by_environment": (
        """
        import os
        import torch
        BACKEND = os.environ.get("PRIMUS_TURBO_GEMM_BACKEND", "TRITON")
        DEBUG = os.getenv("MY_KERNEL_DEBUG") == "1"
        def f(x):
            return torch.exp(x) if BACKEND == "TRITON" else x.exp()
        """,
        set(),
    ),
    "checkpoint_state": (
        """
        import torch
        def f(x, run):
            state = torch.get_rng_state()
            out = torch.nn.functional.dropout(x, 0.1)
            torch.set_rng_state(state)
            return out
        """,
        set(),
    ),
    "own_generator": (
        """
        import torch
        def f(x):
            g = torch.Generator(device=x.device)
            g.manual_seed(17)
            return x + torch.randn(x.shape, generator=g)
        """,
        set(),
    ),
    "compiled_settings": (
        """
        import torch
        torch._inductor.config.max_autotune = True
        torch._dynamo.config.cache_size_limit = 64
        torch.backends.cudnn.benchmark = True
        f = torch.compile(lambda x: torch.exp(x))
        """,
        set(),
    ),
    "tf32_flag": (
        """
        import torch
        torch.backends.cuda.matmul.allow_tf32 = True
        def f(a, b):
            return a @ b
        """,
        {"precision-flag"},
    ),
    "shim_for_an_old_version": (
        """
        import torch
        if not hasattr(torch.distributed, "all_gather_into_tensor"):
            torch.distributed.all_gather_into_tensor = torch.distributed._all_gather_base
        def f(x):
            return torch.exp(x)
        """,
        set(),
    ),
    "caller_gives_the_stream": (
        """
        import torch
        def f(x, stream):
            with torch.cuda.stream(stream):
                return torch.exp(x)
        """,
        set(),
    ),
    "events_join": (
        """
        import torch
        side, done = torch.cuda.Stream(), torch.cuda.Event()
        def f(x):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                out = torch.exp(x)
                done.record(side)
            torch.cuda.current_stream().wait_event(done)
            return out
        """,
        set(),
    ),
    "joined_at_the_end_of_with": (
        """
        from threading import Thread
        import torch
        class Together:
            def __enter__(self):
                self.threads = []
                return self
            def __exit__(self, *error):
                for thread in self.threads:
                    thread.join()
            def run(self, work):
                thread = Thread(target=work)
                thread.start()
                self.threads.append(thread)
        def f(x):
            out = torch.empty_like(x)
            with Together() as all_of_it:
                all_of_it.run(lambda: torch.exp(x, out=out))
            return out
        """,
        set(),
    ),
    "pool_waited_for": (
        """
        from concurrent.futures import ThreadPoolExecutor, wait
        import torch
        _pool = ThreadPoolExecutor(2)
        def f(x):
            out = torch.empty_like(x)
            jobs = [_pool.submit(torch.exp, a, out=b) for a, b in zip(x.chunk(2), out.chunk(2))]
            wait(jobs)
            return out
        """,
        set(),
    ),
    "build_in_a_temporary_folder": (
        """
        import subprocess
        import tempfile
        from pathlib import Path
        import torch
        folder = Path(tempfile.mkdtemp())
        (folder / "kernel.c").write_text("int main(void) { return 0; }")
        subprocess.run(["cc", "-c", str(folder / "kernel.c")], check=True)
        def f(x):
            return torch.exp(x)
        """,
        set(),
    ),
    "its_own_script_at_the_end": (
        """
        import sys
        import torch
        def f(x):
            return torch.exp(x)
        def bench(size):
            torch.manual_seed(0)
            print(f(torch.randn(size)), sys.argv)
        if __name__ == "__main__":
            import pytest
            torch.manual_seed(0)
            pytest.main(sys.argv[1:])
        """,
        set(),
    ),
    "swizzle_constants": (
        """
        import torch
        import triton
        import triton.language as tl
        @triton.jit
        def kernel(
            a, out, BLOCK_M: tl.constexpr, GROUP_SIZE_M: tl.constexpr, TILES_PER_GROUP: tl.constexpr
        ):
            tl.store(out, tl.load(a))
        def f(a):
            assert a.is_contiguous() and a.ndim == 2
            out = torch.empty_like(a)
            kernel[(1,)](a, out, BLOCK_M=64, GROUP_SIZE_M=8, TILES_PER_GROUP=4)
            return out
        """,
        set(),
    ),
    "divisible_by_contract": (
        """
        import torch
        def f(x):
            assert x.shape[-1] % 16 == 0
            return torch.exp(x)
        """,
        {"divisible-shapes"},
    ),
    "retry_with_less": (
        """
        import torch
        import triton
        import triton.language as tl
        from triton.runtime.errors import OutOfResources
        @triton.jit
        def kernel(x, out, BLOCK: tl.constexpr):
            tl.store(out, tl.load(x))
        def f(x):
            out = torch.empty_like(x)
            try:
                kernel[(1,)](x, out, BLOCK=256)
            except OutOfResources:
                kernel[(2,)](x, out, BLOCK=128)
            return out
        """,
        set(),
    ),
    "descriptor_by_address": (
        """
        import torch
        from triton.tools.tensor_descriptor import TensorDescriptor
        _descriptors = {}
        def describe(x):
            key = (x.data_ptr(), x.shape, x.stride())
            if key not in _descriptors:
                _descriptors[key] = TensorDescriptor.from_tensor(x, [64, 64])
            return _descriptors[key]
        """,
        set(),
    ),
    "optimiser_state": (
        """
        import torch
        class Step:
            def __init__(self):
                self.state = {}
            def __call__(self, parameter, grad):
                if parameter not in self.state:
                    self.state[parameter] = torch.zeros_like(parameter)
                moment = self.state[parameter]
                moment.mul_(0.9).add_(grad)
                return parameter - 0.1 * moment
        step = Step()
        """,
        set(),
    ),
    "setting_filled_in_by_the_first_call": (
        """
        import torch
        class Padding(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.multiple = None
            def forward(self, x):
                if self.multiple is None:
                    self.multiple = 16 if x.dtype is torch.float16 else 32
                if x.shape[0] % self.multiple == 0:
                    return x
                return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % self.multiple))
        """,
        set(),
    ),
    "collector_held_during_capture": (
        """
        import gc
        import torch
        def f(x):
            running = gc.isenabled()
            gc.disable()
            try:
                return torch.exp(x)
            finally:
                if running:
                    gc.enable()
        """,
        set(),
    ),
    "path_by_looked_up_setting": (
        """
        import functools
        import torch
        _plans = {}
        @functools.lru_cache
        def world(name):
            return len(name)
        def f(x):
            if x.shape not in _plans:
                _plans[x.shape] = "keep" if x.shape[0] == 1 else "sum"
            if _plans[x.shape] == "keep" or world("a") == 1:
                return x
            return x.sum(0)
        """,
        set(),
    ),
    "lazy_module": (
        """
        import importlib
        import sys
        import torch
        sys.modules[__name__].__doc__ = "kernels"
        def __getattr__(name):
            return importlib.import_module(f"{__name__}.{name}")
        def f(x):
            return torch.exp(x)
        """,
        set(),
    ),
}
