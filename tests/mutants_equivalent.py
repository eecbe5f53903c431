"""Mutants that are no faults, and why: (module, line without its comment, change) → reason.

A reason belongs to the text of a line, not to its number, so it stays when other lines move. `make mutants` tells of
reasons that no surviving mutant needs any more.
"""

LAST_QUERY = "equivalent because the last query stands at the last key, so this side of the band cuts nothing off"
OVERLAP = "equivalent because a strip that reaches one row into the next finds what that strip finds again"
EMPTY_TAIL = "equivalent because the strip or tile after the last has no rows"
FIRST_ALPHA = "equivalent because the first factor exp(−∞ − m) wipes the start out, and a row without keys has m = −∞"
WEIGHTLESS = "equivalent because what stands in for a part of weight zero is multiplied by that zero"
OTHER_WIDENS = "equivalent because the other operand is in the wide dtype, so NumPy widens this one itself"
NOT_TILED = "equivalent because standard attention takes the direction only to be called like the others"
NOTHING_WAITS = "equivalent because no tile waits yet: what this scales is 0"
SAME_SHAPE = "equivalent because Q has this shape already"

D = "D = (dO[rows].astype(wide) * O[rows].astype(wide)).sum(axis=1)"
BACKWARD = "def backward_head(dO, Q, K, V, O, L, rule, Br=None, Bc=None, reverse=False, dL=None, dB=None):"

EQUIVALENT = {
    ("scores", "live_queries = (p + self.right >= 0) & (p - self.left < self.Nk) & (self.Nk > 0)",
     "p - self.left < self.Nk → p - self.left <= self.Nk"): LAST_QUERY,
    ("scores",
     "live_keys = (j >= self.offset - self.left) & (j < self.offset + self.Nq + self.right) & (self.Nq > 0)",
     "j < self.offset + self.Nq + self.right → j <= self.offset + self.Nq + self.right"): LAST_QUERY,
    ("scores", "live_queries[:], live_keys[:] = False, False", "False → True"):
        "equivalent because every strip writes its part of live_queries (for live_keys the change is noticed)",
    ("scores", "for start in range(0, self.Nq, 64):", "range(0, self.Nq, 64) → range(0, self.Nq + 1, 64)"): EMPTY_TAIL,
    ("scores", "rows = slice(start, min(start + 64, self.Nq))", "64 → 65"): OVERLAP,
    ("online_softmax", "l = x.dtype.type(0)", "0 → 1"): FIRST_ALPHA,
    ("online_softmax", "part_a = (weight_a / l)[..., None] * np.where(weight_a[..., None] > 0, out_a, 0)", "0 → 1"):
        WEIGHTLESS,
    ("online_softmax", "part_b = (weight_b / l)[..., None] * np.where(weight_b[..., None] > 0, out_b, 0)", "0 → 1"):
        WEIGHTLESS,
    ("standard", "def forward_head(Q, K, V, rule, Br=None, Bc=None, reverse=False):", "False → True"): NOT_TILED,
    ("standard", BACKWARD, "False → True"): NOT_TILED,
    ("fa1", "dQ = np.zeros_like(Q, shape=(Nq, d), dtype=wide)", "shape=(Nq, d) → (left out)"): SAME_SHAPE,
    ("fa2", "dQ = np.zeros_like(Q, shape=(Nq, d), dtype=wide)", "shape=(Nq, d) → (left out)"): SAME_SHAPE,
    ("fa2", "for i in range(Tr):", "range(Tr) → range(Tr + 1)"): EMPTY_TAIL,
    ("fp8", "return values.astype(np.float32) * spread(np.asarray(scales, np.float32), values.shape, granularity)",
     "values.astype(np.float32) → values"): OTHER_WIDENS,
    ("fa3_fp8", "sV_before = 1", "1 → 2"): NOTHING_WAITS,
    ("fa3_fp8", "sV_before = 1", "1 → 0"): NOTHING_WAITS,
    ("fp8", "if isinstance(sV, np.ndarray) and Nk and float(sV.max()) * largest * stretch * Nk > FLOAT32_MAX:",
     "float(sV.max()) * largest * stretch * Nk > FLOAT32_MAX → "
     "float(sV.max()) * largest * stretch * Nk >= FLOAT32_MAX"):
        "equivalent because no scale of float32 times these whole numbers is the largest float32 itself",
    ("fp8", "Y = Y * signs.astype(Y.dtype)", "Y * signs.astype(Y.dtype) → Y / signs.astype(Y.dtype)"):
        "equivalent because signs are ±1",
    ("heads", "live_dL = None if dlse is None else np.where(live_queries, dL, 0)", "0 → 1"):
        "equivalent because P is 0 in a row without keys, and any finite number times that is 0",
    ("heads", "statistics = (np.ones_like(L), L) if core is fa1 else (L,)", "np.ones_like → np.zeros_like"):
        "equivalent because the guard of the division reads a sum of 0 as 1",
    ("heads", D, "dO[rows].astype(wide) → dO[rows]"): OTHER_WIDENS,
    ("heads", D, "O[rows].astype(wide) → O[rows]"): OTHER_WIDENS,
}
