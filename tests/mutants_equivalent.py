"""Mutants that are no faults, and why: (module, line without its comment, change) → reason."""

EQUIVALENT = {}
