"""How Sphinx makes the pages; `make docs` runs it with warnings as errors."""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
# notebooks run in processes of their own, which inherit these
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("COLUMNS", "100")
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "_ext"), str(HERE.parent)])

project = "rookery"
author = "The rookery maintainers"
copyright = "The rookery maintainers; Apache-2.0"
version = release = version_of("rookery")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "site_links",
    "site_reference",
]
exclude_patterns = [
    "_build",
    "_ext",
    "_examples",
    "gallery/**.ipynb",
    "gallery/**.py",
    "jupyter_execute",
]
default_role = "code"
highlight_language = "none"

html_theme = "furo"
html_title = f"rookery {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]
html_copy_source = False
html_show_sourcelink = False

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / ".cache" / "docs-notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_attr_annotations = False

import site_gallery  # noqa: E402  after the path is set

sphinx_gallery_conf = site_gallery.settings(HERE)
