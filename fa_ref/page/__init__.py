"""A recording as one HTML page that needs nothing from anywhere else: page.html with styles, programs and the data."""

import json
from html import escape
from importlib import resources
from string import Template

from fa_ref.page.data import encoded
from fa_ref.page.listing import listing, source

__all__ = ["html", "iframe", "source"]


def html(recording):
    """The page of a Recording."""
    template, css, *js = (resources.files(__name__).joinpath(name).read_text(encoding="utf-8") for name in (
        "page.html", "page.css", "steps.js", "matrices.js", "controls.js"))
    sources = [source(code) for code in recording.functions]
    data = json.dumps(encoded(recording, sources), ensure_ascii=False, separators=(",", ":"))
    return Template(template).substitute(
        css=css, js="\n".join(js), data=data.replace("<", "\\u003c"), name=escape(sources[0].name),
        file=escape(sources[0].file), count=len(recording), source="\n".join(map(listing, sources)))


def iframe(recording, height=720):
    """The page for a notebook: in a frame, where its styles and its keys are its own. height: in pixels."""
    name = escape(source(recording.functions[0]).name)
    return (f'<iframe title="Recording of {name}" srcdoc="{escape(html(recording))}" '
            f'style="width: 100%; height: {height}px; border: 1px solid #8884; border-radius: 6px"></iframe>')
