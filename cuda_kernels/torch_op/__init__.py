"""Attention as an operator of torch, to train with: `torch.ops.fa_ref.attention`, and a stand-in for torch's own.

    import cuda_kernels.torch_op                                    # registers the operators
    out, lse = torch.ops.fa_ref.attention(q, k, v, causal=True)
    from cuda_kernels.torch_op import scaled_dot_product_attention  # torch's signature and alignment

CUDA tensors go to the kernels: float16 and bfloat16 to `fa2_mma`, others to `fa2`. CPU tensors go to the loops of
`fa_ref`. Both know the gradients, that of lse too. torch.compile sees one operator, and its shapes.

    operators   both passes, registered with their gradients and shapes
    func        torch.func takes gradients too (grad, vjp, jacrev), and maps over one more axis (vmap)
    sdpa        torch's own signature

Refused are a gradient of a gradient, since the backward pass has none, and derivatives that go forwards (jvp, jacfwd,
hessian, dual tensors).
"""

from cuda_kernels.torch_op import func  # noqa: F401  registers what torch.func asks for
from cuda_kernels.torch_op.operators import attention, attention_backward
from cuda_kernels.torch_op.sdpa import scaled_dot_product_attention

__all__ = ["attention", "attention_backward", "scaled_dot_product_attention"]
