"""How the documentation is built: ``make docs``."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

project = "pysampler"
author = "The pysampler authors"
copyright = author  # noqa: A001 - Sphinx's name
version = release = re.search(
    r'__version__ = "(.*?)"', (ROOT / "pysampler/__init__.py").read_text()
).group(1)

extensions = [
    "myst_nb",  # Markdown too
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # shows the outputs in the files; tests/test_notebooks.py executes them
nb_merge_streams = True
# Only references from docstrings: types of other projects have no pages here.
suppress_warnings = ["ref.python"]

autodoc_mock_imports = ["envpool"]  # 740 MB
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature of each class says them; Args say what they mean
autodoc_default_options = {"members": True, "undoc-members": False}
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"pysampler {version}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["pysampler.css"]
# Deferred: it runs after the scripts of the search page.
html_js_files = [("search.js", {"defer": "defer"})]
html_theme_options = {
    "sidebar_hide_name": False,
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#4cc9a0", "color-brand-content": "#4cc9a0"},
}

# Read the Docs sets the address of the pages. Only hosted pages have canonical links, a sitemap and
# social cards; a build at home draws no cards.
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
if html_baseurl:
    extensions += ["sphinx_sitemap", "sphinxext.opengraph"]
sitemap_url_scheme = "{link}"  # the address includes language and version
sitemap_show_lastmod = False  # hosts clone without the history that has the dates
ogp_site_url = html_baseurl
ogp_social_cards = {"line_color": "#0b6e4f"}
