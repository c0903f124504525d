"""Packaging. The package itself needs only the Keras that is installed; an extra brings one."""

import re
import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup

# The only place that knows the repository's URL, such as "https://github.com/owner/keras_accum".
# Without one, the metadata has no URLs, and links in the long description stay relative.
REPOSITORY = None

HERE = Path(__file__).resolve().parent
# A build keeps what an earlier one has left here, also files that the package no longer has.
shutil.rmtree(HERE / "build/lib", ignore_errors=True)
# Read, not imported: a build must not depend on what the package imports.
SOURCE = (HERE / "keras_accum/__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'^__version__ = "(.+)"', SOURCE, re.M).group(1)

# A link or an image of Markdown or HTML up to its target, or code, in which nothing is a link.
LINK = re.compile(
    r"""(?P<code>```.*?```|`[^`]*`)
    | (?P<before>(?P<image>!\[[^\]]*\]\(|src=")|\]\(|href=")(?!\w+:|\#)(?P<target>[^\s)"]+)""",
    re.VERBOSE | re.DOTALL,
)


def with_absolute_links(markdown):
    """A document of the repository as a package index can show it: links name this version."""
    if not REPOSITORY:
        return markdown

    def absolute(match):
        if match["code"]:
            return match["code"]
        if match["target"].startswith("../../"):  # as on the repository's page: from blob/main
            return f"{match['before']}{REPOSITORY}/{match['target'][6:]}"
        view = "raw" if match["image"] else "blob"
        return f"{match['before']}{REPOSITORY}/{view}/v{VERSION}/{match['target']}"

    return LINK.sub(absolute, markdown)


URLS = {
    "Documentation": f"{REPOSITORY}/blob/v{VERSION}/docs/start.md",
    "Source": REPOSITORY,
    "Changelog": f"{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md",
    "Issues": f"{REPOSITORY}/issues",
}

# setuptools knows a license expression since version 77, which needs Python 3.9.
LICENSE = {"license_expression" if sys.version_info >= (3, 9) else "license": "MIT"}

# What contributors need is in the dependency groups of pyproject.toml.
EXTRAS = {
    "tensorflow": ["keras>=3.10", "tensorflow>=2.16.1"],
    "jax": ["keras>=3.10", "jax"],
    "torch": ["keras>=3.10", "torch>=2.1"],
    "legacy": ["tf_keras>=2.16", "tensorflow>=2.16.1"],
    "keras2": [
        "keras>=2.2.4,<2.4",
        "tensorflow==1.15.5",
        # What came after these does without the old names and types that TensorFlow 1 needs.
        "protobuf<3.21",
        "h5py<3",
        "numpy<1.19",
    ],
    "demo": ["scikit-learn", "matplotlib"],  # python -m keras_accum, and the notebooks
}

setup(
    name="keras_accum",
    version=VERSION,
    description="Gradient accumulation for Keras: optimizers that train as the big batch would",
    long_description=with_absolute_links((HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    author="The keras_accum developers",
    maintainer="The keras_accum developers",
    license_files=["LICENSE"],
    **LICENSE,
    project_urls=URLS if REPOSITORY else {},
    keywords=[
        *("keras", "tensorflow", "jax", "pytorch", "deep learning", "optimizer", "adam"),
        *("gradient accumulation", "large batch", "micro-batch", "out of memory"),
    ],
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(7, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["keras_accum*"]),
    package_data={"keras_accum": ["py.typed"]},
    python_requires=">=3.7",
    extras_require=EXTRAS,
)
