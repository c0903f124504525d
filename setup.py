"""Packaging. The package itself needs only the Keras that is already there; an extra brings one."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
# Read, not imported: a build must not depend on what the package imports.
VERSION = re.search(r'^__version__ = "(.+)"', (HERE / "keras_accum/__init__.py").read_text(), re.M)

DEMO = ["scikit-learn", "matplotlib", "tqdm"]
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
    "peers": ["runai==0.4.1; python_version < '3.8'"],  # whom benchmarks compare with
    "demo": DEMO,  # python -m keras_accum
    "notebooks": ["nbclient", "ipykernel", *DEMO],
    "test": ["pytest>=7", "pytest-xdist", *DEMO],
}

setup(
    name="keras_accum",
    version=VERSION.group(1),
    description="Gradient accumulation for Keras: optimizers that train as the big batch would",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["keras_accum*"]),
    python_requires=">=3.7",
    install_requires=["importlib_metadata; python_version < '3.8'"],
    extras_require=EXTRAS,
)
