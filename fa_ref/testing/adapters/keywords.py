"""What a function can be asked by its signature: options that it does not take are left out, and the report says so."""

import inspect


def not_taken(fn, keywords):
    """Those of the keywords that fn does not take; none if it takes any, or has no signature that can be read."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return []
    taken = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return [name for name in keywords if name not in taken]
