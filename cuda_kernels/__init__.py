"""The algorithms of `fa_ref` as GPU kernels in Numba-CUDA: the same file names, the same numbered steps."""
