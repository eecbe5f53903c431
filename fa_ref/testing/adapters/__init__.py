"""Speak to attention functions in their own conventions.

An adapter takes a function and returns (ask, supports): ask(problem) -> Result, and what can be asked of it.

    ours                fa_ref          `fa_ref.forward` and `fa_ref.backward`
    torch_sdpa          sdpa            torch's `scaled_dot_product_attention`
    flash_attention_2   flash_attn      the library flash_attn
    torch_flex          flex_attention  torch's `flex_attention`

`keywords` says which options a function does not take; `packed` joins sequences into the arrays of one call, and cuts
its answer. No module has the name of a function: here
`adapters.sdpa` is always the function.
"""

from fa_ref.testing.adapters.flash_attention_2 import flash_attn
from fa_ref.testing.adapters.ours import fa_ref, gives_lse
from fa_ref.testing.adapters.torch_flex import flex_attention
from fa_ref.testing.adapters.torch_sdpa import sdpa

__all__ = ["fa_ref", "flash_attn", "flex_attention", "gives_lse", "sdpa"]
