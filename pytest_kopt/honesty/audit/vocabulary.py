"""What the names of torch, numpy and Python mean to the audit: public API, by what it does."""

from __future__ import annotations

from typing import Final


def names(text: str) -> frozenset[str]:
    """Return the words of a text: a long set of names, written to be read."""
    return frozenset(text.split())


#: Attributes of a tensor that say nothing of its elements or identity.
META_ATTRIBUTES: Final = names(
    "shape dtype device layout ndim is_cuda is_leaf requires_grad names nbytes itemsize is_sparse"
    " is_quantized is_meta grad_fn is_mps is_xpu is_cpu strides flags"
)
META_METHODS: Final = names(
    "size stride numel nelement dim ndimension element_size is_contiguous get_device is_pinned"
    " storage_offset is_floating_point is_complex type is_shared is_inference is_signed"
    " is_same_size register_hook record_stream backward retain_grad has_names"
    " data_ptr_alignment"
)
#: Of these and of the views, what hardly anything but a tensor (or an array) has.
TENSORS_ONLY: Final = names(
    "shape ndim is_cuda requires_grad is_leaf nbytes stride numel nelement element_size"
    " is_contiguous get_device storage_offset is_floating_point record_stream data_ptr unsqueeze"
    " squeeze permute transpose detach expand reshape untyped_storage _version _cdata new_empty"
    " new_zeros new_ones new_full new_tensor new_empty_strided __array_interface__"
    " __cuda_array_interface__ unbind narrow movedim"
)
#: Where torch's operators live; all their arguments in these are tensors.
OPERATORS: Final = "torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft"
#: What makes tensors of anything.
CONVERSIONS: Final = names("tensor as_tensor asarray from_numpy stack is_tensor")
PRODUCTS: Final = names(
    "mm matmul bmm addmm baddbmm linear mv dot outer rms_norm layer_norm"
    " scaled_dot_product_attention"
)
VIEWS: Final = names(
    "view reshape expand permute transpose t detach unsqueeze squeeze flatten unflatten narrow"
    " split chunk unbind numpy view_as expand_as movedim swapaxes swapdims select diagonal unfold"
    " tensor_split hsplit vsplit as_strided requires_grad_ untyped_storage storage T mT H mH data"
    " real imag ravel adjoint resolve_conj resolve_neg broadcast_to reshape_as"
)
#: A copy of the same elements: computed anew, but what it repeats it still repeats.
COPIES: Final = names(
    "clone contiguous to cpu cuda float half bfloat16 double type_as copy astype int long"
)
IDENTITY_ATTRIBUTES: Final = frozenset(
    {"_cdata", "__array_interface__", "__cuda_array_interface__"}
)
IDENTITY_METHODS: Final = frozenset({"data_ptr", "__hash__", "_cdata"})
CONTENT_METHODS: Final = names(
    "item tolist tobytes __bool__ __float__ __int__ equal allclose hexdigest digest"
)
#: In-place methods that leave nothing of what was there.
OVERWRITES: Final = names(
    "copy_ zero_ fill_ normal_ uniform_ random_ set_ resize_ exponential_ bernoulli_"
)
ALLOCATING_METHODS: Final = names(
    "new_empty new_zeros new_ones new_full new_tensor new_empty_strided"
)
ALLOCATORS: Final = names(
    "empty zeros ones full arange linspace logspace eye rand randn randint randperm normal"
    " empty_like zeros_like ones_like full_like rand_like randn_like randint_like empty_strided"
    " scalar_tensor tril_indices triu_indices hann_window range empty_permuted ndarray memmap"
)
#: Functions of torch whose result holds no tensor data, by what their name starts with.
WITHOUT_DATA: Final = tuple(
    sorted(
        names(
            "torch.cuda. torch.backends. torch.is_ torch.get_ torch.set_ torch.finfo torch.iinfo"
            " torch.device torch.Size torch.dtype torch.compile torch.jit. torch.no_grad"
            " torch.enable_grad torch.inference_mode torch.autocast torch.amp. torch.library."
            " torch.utils. torch.testing. torch.profiler. torch.version. torch.promote_types"
            " torch.result_type torch.can_cast torch.broadcast_shapes torch.compiler."
            " torch._dynamo. torch.random. torch.manual_seed"
            " torch.seed torch.initial_seed torch.hub. torch.classes. torch.export. torch.fx."
            " torch.Generator torch.Stream torch.Event torch.distributed. torch.hip. torch.xpu."
            " torch.mps. torch.accelerator. torch.overrides. torch.autograd. torch._C. torch.use_"
            " torch.float torch.bfloat16 torch.half torch.int torch.uint8 torch.bool torch.typename"
            " torch._assert torch.cpu. torch._inductor. torch.serialization. torch.monitor."
            " torch.nn.Module torch.nn.Parameter torch.nn.init torch.Tag"
        )
    )
)
#: Host results read from elements.
CONTENT_FUNCTIONS: Final = names(
    "torch.equal torch.allclose torch.is_nonzero numpy.array_equal numpy.allclose torch.hash_tensor"
)
CONTENT_PACKAGES: Final = names("hashlib zlib binascii xxhash pickle struct")
#: Builtins that make a host number of an element.
CASTS: Final = names("float int bool complex bytes bytearray memoryview")

CONTAINERS: Final = {
    "builtins.dict": "dict",
    "builtins.list": "list",
    "builtins.set": "set",
    "collections.OrderedDict": "dict",
    "collections.defaultdict": "dict",
    "collections.Counter": "dict",
    "collections.deque": "list",
    "collections.ChainMap": "dict",
    "weakref.WeakKeyDictionary": "dict",
    "weakref.WeakValueDictionary": "dict",
    "weakref.WeakSet": "set",
    "types.SimpleNamespace": "instance",
    "threading.local": "instance",
    "builtins.object": "instance",
    "contextvars.ContextVar": "instance",
}
#: Decorators after which equal arguments do not run the function again.
MEMOISERS: Final = names(
    "functools.lru_cache functools.cache cachetools.cached"
    " functools.lru_cache() cachetools.cached() joblib.Memory().cache"
)
#: Packages whose decorators make device code of a function.
DEVICE_PACKAGES: Final = names(
    "triton cutlass cute flydsl tilelang numba gluon helion warp taichi pallas flyc"
)
DEVICE_DECORATORS: Final = frozenset({"jit", "kernel", "autotune", "heuristics", "prim_func"})
VENDOR_OPS: Final = frozenset({"aten", "prims", "prim", "mkldnn", "quantized", "mkl", "xnnpack"})

#: What saves to and loads from a disk.
SAVERS: Final = names(
    "numpy.save numpy.savez numpy.savez_compressed torch.save pickle.dump joblib.dump"
    " safetensors.torch.save_file"
)
LOADERS: Final = names(
    "numpy.load numpy.fromfile numpy.memmap torch.load pickle.load joblib.load torch.from_file"
    " safetensors.torch.load_file"
)
