"""Sphinx: the site is built from the pages as they are in the repository, docstrings, and the protocol's comments."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path
from shutil import copyfile

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts import contract, docstrings  # noqa: E402

project = "replay-service"
version = release = version_of(project)
project_copyright = "replay-service contributors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "benchmarks/findings.md"]
exclude_patterns = [".*", "build", "node_modules"]
default_role = "py:obj"
suppress_warnings = ["ref.python"]  # fields called `bytes` are ambiguous with the type in annotations

myst_heading_anchors = 4

WITHOUT_MEMBERS = (
    *("Mapping", "MutableMapping", "BaseException", "ReplayError", "Enum", "tuple", "Module", "IterableDataset"),
    *("Wrapper", "VectorWrapper", "ReplayBuffer", "ReplayBufferSamples", "ReplayBufferManager"),
    *("OffPolicyAlgorithm", "DQN", "QRDQN"),
)
"""Base classes whose members are not repeated in their subclasses."""
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "inherited-members": ", ".join(WITHOUT_MEMBERS),
    "show-inheritance": True,
}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False

only_pages = tags.has("pages")  # noqa: F821 - Sphinx defines it
"""Whether to leave out everything that is generated; this checks links within three seconds: `-t pages`."""
if only_pages:
    exclude_patterns.append("docs/site/*-api.md")

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path: list[str] = []

CONTENTS = """
```{toctree}
:hidden:
:caption: Start
docs/tutorial
```
```{toctree}
:hidden:
:caption: How to
docs/how-to/choosing
docs/how-to/client
docs/how-to/many-actors
docs/how-to/images
docs/how-to/recurrent
docs/how-to/mixed-data
docs/how-to/data
docs/how-to/integrations
docs/how-to/recipes
docs/how-to/ray
```
```{toctree}
:hidden:
:caption: Concepts
docs/concepts/overview
docs/concepts/steps
docs/concepts/backpressure
docs/concepts/glossary
```
```{toctree}
:hidden:
:caption: The trainer
docs/trainer/trainer
docs/trainer/learning-curves
docs/trainer/cliffwalk
```
```{toctree}
:hidden:
:caption: Operations
docs/operations/server
docs/operations/scaling
docs/operations/kubernetes
docs/operations/slurm
docs/operations/monitoring
docs/operations/security
docs/operations/checkpoints
docs/operations/stability
docs/operations/reliability
docs/operations/troubleshooting
```
```{toctree}
:hidden:
:caption: Coming from elsewhere
docs/coming-from/expectations
docs/coming-from/from-reverb
docs/coming-from/from-cpprb
docs/coming-from/from-torchrl
```
```{toctree}
:hidden:
:caption: Reference
docs/site/client-api
docs/site/integrations-api
docs/site/agent-api
docs/site/contract
docs/site/examples
```
```{toctree}
:hidden:
:caption: Project
docs/project/benchmarks
benchmarks/findings
docs/project/architecture
docs/project/storage
docs/project/shards
CONTRIBUTING
SECURITY
CODE_OF_CONDUCT
CHANGELOG
```
"""
"""The order of the pages. Sphinx reports pages that are missing here."""


if only_pages:
    CONTENTS = "\n".join(line for line in CONTENTS.splitlines() if not line.endswith("-api"))


def complete(app: Sphinx, page: str, source: list[str]) -> None:
    """Add what pages do not contain in the repository."""
    for folder in ("](examples/)", "](../examples/)", "](../../examples/)"):
        source[0] = source[0].replace(folder, "](/docs/site/examples.md)")
    if page == root_doc:
        source[0] += CONTENTS
    elif page == "docs/site/contract" and not only_pages:
        source[0] += contract.markdown()


def add_index(app: Sphinx, error: Exception | None) -> None:
    """The first page is also ``index.html``."""
    if error is None and app.builder.format == "html":
        copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", complete)
    app.connect("autodoc-process-docstring", docstrings.process)
    app.connect("build-finished", add_index)
