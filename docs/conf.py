"""Sphinx's settings for the site. `make docs` builds it: docs/site/build.py gathers the pages, then calls Sphinx.

Nothing is loaded from the network: no web fonts, no MathJax. Notebooks are shown as they were committed.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "site"), str(HERE.parent)]

import docstrings  # noqa: E402
from pygments.lexers import TextLexer  # noqa: E402

project = "fa_ref"
author = "The fa_ref authors"
project_copyright = author
html_title = "FlashAttention you can read"

extensions = ["sphinx.ext.autodoc", "myst_nb"]
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = []                                         # in particular no $ for formulas
myst_heading_anchors = 6                                            # links to headings, named as code hosts do
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"
autodoc_inherit_docstrings = False                                  # what torch says of its methods is not ours
autodoc_preserve_defaults = True                                    # as written, not as Python shows the value
add_module_names = False
smartquotes = False
highlight_language = "text"                                         # of blocks that name none
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

html_theme = "furo"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
templates_path = []
exclude_patterns = ["extra"]


def setup(app):
    app.add_lexer("pdb", TextLexer)                                 # the recorded sessions in docs/
    app.connect("autodoc-process-docstring", docstrings.process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
