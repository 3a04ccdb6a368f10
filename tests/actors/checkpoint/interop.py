"""Holds our safetensors files to Python's package. Usage: interop.py OURS THEIRS

Exits 3 where the packages are missing. Otherwise reads OURS, which must hold what `expected` says, and writes the same
tensors to THEIRS.
"""
import sys

try:
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file
except ImportError as missing:
    print(missing)
    sys.exit(3)

expected = {
    "conv1.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8,
    "conv1.half": np.arange(5, dtype=np.float16),
    "bn.running_var": np.array([1.5, -2.5], dtype=np.float64),
    "bn.num_batches_tracked": np.array(77, dtype=np.int64),
    "mask": np.array([True, False, True]),
    "bytes": np.array([0, 127, 255], dtype=np.uint8),
    "empty": np.zeros((0, 4), dtype=np.float32),
}
with safe_open(sys.argv[1], framework="np") as ours:
    assert ours.metadata() == {"format": "pt"}, ours.metadata()
    assert set(ours.keys()) == set(expected), ours.keys()
    for name, want in expected.items():
        got = ours.get_tensor(name)
        assert got.dtype == want.dtype and got.shape == want.shape, (name, got.dtype, got.shape)
        assert np.array_equal(got, want), (name, got)
save_file(expected, sys.argv[2], metadata={"format": "pt"})
