"""torch's own signature: swap one import."""

import torch

from cuda_kernels.torch_op.operators import attention, check_axes_and_devices
from fa_ref.options import check_flag, check_number


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):
    """What torch.nn.functional.scaled_dot_product_attention does, for (B, H, N, d); is_causal is top-left, as there.

    Under torch.autocast the tensors are cast as torch casts its own. NotImplementedError for a mask, for dropout;
    ValueError for grouped heads without enable_gqa, for other axes than four; TypeError for what is no tensor, for
    flags that are no bool, and for a scale that is a tensor: it would get no gradient.
    """
    if attn_mask is not None:
        raise NotImplementedError("attn_mask is not offered by fa_ref::attention; is_causal is")
    if dropout_p:
        raise NotImplementedError(f"dropout_p is not offered by fa_ref::attention, got {dropout_p}")
    for name, x in {"query": query, "key": key, "value": value}.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    check_flag("is_causal", is_causal)
    check_flag("enable_gqa", enable_gqa)
    if isinstance(scale, torch.Tensor):
        raise TypeError("scale must be a number, got a tensor, which would get no gradient")
    if scale is not None:                                           # the operator would get a number for a bool
        check_number("scale", scale)
    check_axes_and_devices(query=query, key=key, value=value)
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"{query.shape[1]} query heads and {key.shape[1]} key/value heads need enable_gqa=True")
    device = query.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x
                             for x in (query, key, value))
    right = -1
    if is_causal:                                                   # query i sees the keys 0 … i
        Nq, Nk = query.shape[2], key.shape[2]
        if Nk != value.shape[2]:                                    # cut to Nq both, they might fit
            raise ValueError(f"numbers of keys differ: key has Nk = {Nk}, value has Nk = {value.shape[2]}")
        if Nk > Nq:
            key, value = key[:, :, :Nq], value[:, :, :Nq]
        right = max(Nq - Nk, 0)
    return attention(query, key, value, scale=scale, window_right=right)[0]
