"""The documentation site: `make docs` builds it."""

import logging as python_logging
import os
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from sphinx.util import logging

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from docstrings import complete, escape, members_of  # noqa: E402  (these are beside this file)
from figures import expanded  # noqa: E402
from pages import write_pages  # noqa: E402
from paper import write_page_of_all  # noqa: E402

project = "dekrr"
copyright = "the dekrr developers, BSD 3-Clause"
release = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx-mathjax-offline",
    "numpydoc",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_report", "_templates", "gallery", "auto_gallery/uses"]
exclude_patterns += ["sg_execution_times.rst", "auto_gallery/sg_execution_times.rst"]
exclude_patterns += [f"auto_gallery/*.{suffix}" for suffix in ("ipynb", "json", "md5", "py", "zip")]
suppress_warnings = ["config.cache"]  # the gallery's settings hold a class, which cannot be kept between builds
nitpicky = False
smartquotes_action = "qe"  # quotes and dots, but no dashes: an option begins with two hyphens

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = True
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_execution_raise_on_error = True
python_logging.getLogger("matplotlib.animation").setLevel("ERROR")  # without ffmpeg, Pillow makes the film: as well
kernels = Path(tempfile.mkdtemp(prefix="dekrr-docs-"))  # pages run on this machine alone: no word on encryption is due
(kernels / "profile_default").mkdir()
(kernels / "profile_default" / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 'ERROR'\n")
os.environ["IPYTHONDIR"] = str(kernels)

templates_path = ["_templates"]
autosummary_generate = True
autosummary_context = {"members_of": members_of}
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"  # in the narrow column of a page's contents

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": True,
    "remove_config_comments": True,
    "show_memory": False,
    "abort_on_example_error": True,
    "download_all_examples": False,
    "backreferences_dir": "auto_gallery/uses",  # the examples that use a name, for its page
    "doc_module": ("dekrr",),
}

html_theme = "pydata_sphinx_theme"
html_title = f"dekrr {release}"
html_static_path = ["_static"]
html_extra_path = ["_report"]
html_css_files = ["site.css"]
html_theme_options = {
    "navigation_with_keys": True,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"faq": [], "install": []}  # there is nothing beside these
html_show_sourcelink = False


write_pages(HERE)
write_page_of_all(HERE / "_report")


def load_nothing_from_elsewhere(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Take out the icons that matplotlib's player of animations fetches; the theme brings the same ones along."""
    context["body"] = re.sub(r'<link rel="stylesheet"\s+href="https://[^>]*>', "", context.get("body") or "")


def refuse_warnings(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Say which examples and notebooks show a warning of Python, or a path of the machine that builds the site."""
    body = context.get("body") or ""
    shown = re.findall(r'class="(?:sphx-glr-script-out|cell_output)[ "].*?</pre>', body, flags=re.S)
    if str(HERE.parent) in body or any(re.search(r"\w*Warning</?[^>]*>?: |\w+Warning: ", part) for part in shown):
        logging.getLogger(__name__).warning("%s shows a warning of Python, or a path of this machine", page)


def write_figures(app: Any, page: str, source: list[str]) -> None:
    """Put tables and sentences that are made from benchmarks/results in the place of their marks."""
    source[0] = expanded(source[0])


def link_files(app: Any, page: str, source: list[str]) -> None:
    """Make links of names of files of the source archive, such as `benchmarks/mesh.py`; the site brings them along."""

    def link(found: re.Match[str]) -> str:
        path = found[1]
        is_file = (HERE.parent / path).is_file()
        return f"{{download}}`{path} </../{path}>`" if is_file else found[0]

    parts = re.split(r"(^ *```.*?^ *```$)", source[0], flags=re.M | re.S)
    for place in range(0, len(parts), 2):  # those between blocks of code
        parts[place] = re.sub(r"(?<![`}])`((?:benchmarks|examples|packaging|tests)/[\w./@-]+)`", link, parts[place])
    source[0] = "".join(parts)


def setup(app: Any) -> None:
    """Add to Sphinx what the pages need."""
    app.connect("source-read", write_figures)
    app.connect("source-read", link_files)
    app.connect("html-page-context", load_nothing_from_elsewhere)
    app.connect("html-page-context", refuse_warnings)
    app.connect("autodoc-process-docstring", complete, priority=400)  # before numpydoc reads it
    app.connect("autodoc-process-docstring", escape)
