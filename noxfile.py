"""Run the tests of the project, each host in a fresh environment.

    nox                               the first tier, and the second one on TensorFlow and JAX
    nox -s keras3_torch               the second tier on another host; `nox -l` lists all sessions
    nox -s keras3_jax -- -k window    some of its tests; arguments after `--` go to pytest
    nox -s keras3_jax -- -m ''        all tests of one host
    nox -r -s rest                    the tests that `nox` leaves out; -r reuses its environments
    nox -s rest -- keras3_torch       those of one host
    nox -s weekly                     what no change waits for: second versions, notebooks
    nox -r -s fuzz -- keras3_torch    an hour of random trainings on one host

CONTRIBUTING.md explains the tiers. Each session installs the package as a built wheel, and pytest
runs in the folder `tests`, where the source tree can't be imported: the tests see what a user would
install.
"""

import os
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"  # the first with dependency groups

# Each session starts many processes. Without bytecode files, each of them would compile the source
# of its framework again, which takes up to ten seconds. Docker images often set this variable.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PROJECT = Path(__file__).resolve().parent
TESTS = PROJECT / "tests"


def group(name):
    """The requirements of a dependency group of pyproject.toml."""
    return nox.project.dependency_groups(nox.project.load_toml(PROJECT / "pyproject.toml"), name)


sys.path.append(str(TESTS / "support"))
from pythons import find_python  # noqa: E402

# Each worker holds a framework in memory, so there are few workers. The tests of a file share
# fixtures and stay on one worker where possible.
EACH_HOST = (
    *("--numprocesses=auto", "--maxprocesses=4", "--dist=worksteal"),
    *("--durations=10", "--durations-min=5", "--ignore=pure"),
)

SECOND_TIER = ("-m", "not thorough")
ALL = ("-m", "not weekly")
# The tests of a second version of a host, once a week: rules, files and arguments can differ there.
WHERE_VERSIONS_DIFFER = (
    *("every_optimizer", "stock", "saving", "kept_files", "old_files", "migration", "configs"),
    *("arguments", "distribution", "keras2"),
)


def of_versions(names):
    """The arguments for what differs between versions in these files of tests."""
    chosen = " or ".join(f"test_{name}" for name in names)
    return "-m", "not thorough or each_version", "-k", chosen


SECOND_VERSION = of_versions(WHERE_VERSIONS_DIFFER)
# Also what uses private members of Keras 3, but no files that a newer Keras wrote.
OF_OLDEST = (set(WHERE_VERSIONS_DIFFER) - {"kept_files"}) | {"compare", "micro_batches"}
OLDEST_KERAS_3 = of_versions(sorted(OF_OLDEST))
# What represents them in `rest`: each rule, each file format, and files that other hosts load.
REPRESENTATIVE = (
    *("-m", "not thorough or each_version"),
    *("-k", "test_plain or test_saving or test_moved"),
)
# What graphs of TensorFlow, replicas and its files have of their own, from the third tier.
NAMES_OF_GRAPHS = (
    *("test_graph", "test_closing", "test_saving", "mirrored_strategy", "in_replicas"),
    *("checkpoint_in_a_window", "central_storage"),
)
OF_GRAPHS = "-m", "thorough and not weekly", "-k", " or ".join(NAMES_OF_GRAPHS)
# The newer style of tf_keras differs in its optimizers. Callbacks are the same for both styles, and
# these tests of them run on the newer one.
OF_STYLE = (
    *of_versions(("every_optimizer", "new_style", "ema", "window", "plain", "saving", "stock")),
    "--ignore=documents",
)

# One small file, which runs on each minor version that docs/install.md names.
EACH_VERSION = "numbers/test_each_version.py", "-m", "weekly"
TENSORFLOWS = [f"2.{minor}" for minor in range(8, 15)]  # 2.15 has a session of its own
KERAS_3 = [f"3.{minor}" for minor in range(10, 16)]

# JAX and PyTorch end their support of older Pythons early.
NEWEST = find_python("3.13", "3.12")
# Programs of tests run once, so compiling them costs more than running them.
ON_JAX = {"KERAS_BACKEND": "jax", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
BACKENDS = ["tensorflow", "jax", "torch"]

# The arguments of each session of `rest`. Keras 2 comes first: other hosts load the files it saves.
# The third tier runs on PyTorch, which compiles nothing: elsewhere it takes three times as long.
REST = {
    "docs": (),
    "lint": (),
    "package": (),
    "keras2": SECOND_TIER,
    "keras2_3": REPRESENTATIVE,
    "keras3_jax_newest": SECOND_TIER if NEWEST else (),
    "keras3_tensorflow": OF_GRAPHS,
    "tf_keras": SECOND_TIER,
    "tf_keras_new": OF_STYLE,
    "keras3_torch": ALL,
    "tf_keras_2_15": REPRESENTATIVE,
}
# The arguments of each session of `weekly`.
WEEKLY = {
    "keras2": ("-m", "thorough"),
    "keras2_3": SECOND_VERSION,
    "tf_keras_2_15": SECOND_VERSION,
    "keras3_jax": ("-m", "thorough"),
    "keras3_tensorflow": ("-m", "thorough"),
    "keras3_torch": ("-m", "weekly"),
    "keras3_torch_newest": (),
    "tf_keras": ("-m", "thorough"),
    "tf_keras_new": SECOND_TIER,
    "package": ("sdist",),
    "mutations": (),
    **{f"tf_keras_versions({version})": () for version in TENSORFLOWS},
    **{f"keras3_versions({backend})": () for backend in BACKENDS},
}
# What `works_with` installs and docs/works_with.md names.
WORKS_WITH = (
    *("keras==3.15.1", "tensorflow==2.21.0", "keras-hub==0.32.0"),
    *("mlflow-skinny==3.17.2", "pandas==3.1.1", "orbax-checkpoint==0.12.8"),
    "jax-privacy==2.0.0",
    *("wandb==0.31.0", "keras-tuner==1.4.8", "tensorboard==2.21.0"),  # which the tuner imports
)
# Layers, losses, loaders and trainers for Keras 3, the last three on PyTorch alone.
PACKAGES = (
    *("keras==3.15.1", "tensorflow==2.21.0", "jax==0.10.2", "torch==2.13.0"),
    *("scikeras==0.13.0", "keras-rs==0.4.0", "hgq2==0.2.0", "grain==0.2.18", "bayesflow==2.0.12"),
    *("keras-hub==0.32.0", "flwr==1.42.0", "flax==0.12.8", "tqdm==4.70.1"),
    *("accelerate==1.15.0", "lightning==2.6.6", "opacus==1.6.0"),
)
WITHOUT_ITS_NEEDS = ("keras-tcn==3.5.7",)  # which asks for a TensorFlow for macOS
# Packages for the Keras 2 beside Keras 3.
FOR_TF_KERAS = (
    *("tensorflow==2.21.0", "tf_keras==2.21.0", "larq==0.14.0", "tensorflow-recommenders==0.7.7"),
    *("tensorflow-probability==0.23.0", "tensorflow-model-optimization==0.8.1"),
    *("deepxde==1.15.0", "gpflow==2.11.2", "adversarial-robustness-toolbox==1.20.1"),
    *("keras-cv-attention-models==1.4.3", "keras-tuner==1.4.8", "networkx==3.6.1"),
    *("deepchem==2.8.0", "dill==0.3.9", "greenlet==3.5.6"),
)
# Whose needs are outdated: another Keras, or programs to train from a shell.
FOR_TF_KERAS_ALONE = (
    *("qkeras==0.9.0", "pyparser==1.0", "parse==1.6.5", "gpflux==0.4.5", "trieste==4.5.1"),
)
# Packages that need the Keras 2 of TensorFlow 2.15. tensorflow-addons has ended.
ADDONS = (
    *("tensorflow-cpu==2.15.1", "tensorflow-addons==0.23.0", "neural-structured-learning==1.4.0"),
    *("spektral==1.3.1", "csbdeep==0.8.2", "deepctr==0.9.4", "segmentation-models==1.0.1"),
    *("stardist==0.9.2", "keras-self-attention==0.51.0", "keras-bert==0.89.0"),
    *("tensorflow-probability==0.23.0", "dm-tree==0.1.8", "astropy==7.2.3", "PyYAML==6.0.4"),
    *("Flask==2.3.3", "gin-config==0.5.0", "mpmath==1.4.1"),
    "setuptools==80.9.0",  # newer ones have no pkg_resources, which astroNN imports
)
ADDONS_ALONE = (
    *("tensorflow-ranking==0.5.5", "tensorflow-serving-api==2.15.1", "dlomix==0.1.6"),
    *("fpdf==1.7.2", "astroNN==1.1.0", "elephas==7.3.0", "pyspark==4.0.0", "py4j==0.10.9.9"),
    *("tf-models-official==2.15.0", "tensorflow-privacy==0.9.0", "dp-accounting==0.4.3"),
    *("tf-agents==0.19.0", "gym==0.23.0", "gym-notices==0.1.0"),
    *("OpenNMT-tf==2.32.0", "pyonmttok==1.38.1", "ctranslate2==4.8.5", "rouge==1.0.1"),
    *("sacrebleu==2.6.0", "portalocker==4.4.2", "lxml==6.1.3", "colorama==0.4.6"),
    *("regex==2026.11.19", "tabulate==0.10.0"),
)
# Packages of 2016 to 2021 for Keras 2.2.4 on TensorFlow 1, and what they import.
FOR_KERAS_2 = (
    *("keras-rl==0.4.2", "keras-importance-sampling==0.10", "keras-gradient-noise==0.11"),
    *("keras-lookahead==0.9.0", "keras-pickle-wrapper==1.0.5", "keras-lr-finder==0.1"),
    *("coremltools==3.4", "keras-retinanet==0.5.1", "mrcnn==0.2", "bert4keras==0.11.5"),
    *("keras-radam==0.15.0", "innvestigate==1.0.9", "livelossplot==0.3.4", "keras2onnx==1.7.0"),
    *("tensorflowjs==1.7.4", "tensorflow-determinism==0.3.0", "keras-tqdm==2.0.1"),
    *("imbalanced-learn==0.6.2", "talos==0.6.3", "tensorflow-constrained-optimization==0.2"),
    *("onnx==1.12.0", "onnxconverter-common==1.9.0", "tensorflow-hub==0.7.0"),
    *("keras-resnet==0.2.0", "wrangle==0.6.7", "astetik==1.16", "chances==0.1.9"),
    *("kerasplotlib==1.0", "fire==0.7.1", "keras-lr-multiplier==0.9.0"),
    *("anago==1.0.8", "seqeval==1.2.2"),
)
NEEDS_ON_KERAS_2 = (
    *("keras==2.2.4", "blinker==1.6.3", "mpmath==1.3.0", "sympy==1.10.1", "tqdm==4.66.1"),
    *("future==1.0.0", "scikit-image==0.18.3", "ipython==7.34.0", "pandas==1.1.5"),
    *("statsmodels==0.12.2", "seaborn==0.11.2", "requests", "progressbar2==4.2.0"),
    *("opencv-python-headless==4.5.5.64", "imgaug==0.4.0", "importlib-metadata"),
)
NEEDS_ON_TENSORFLOW_2_10 = (
    *("tensorflow-cpu==2.10.1", "numpy==1.23.5", "scipy==1.10.1", "scikit-learn==1.1.3"),
    *("pandas==1.5.3", "matplotlib==3.6.3", "sympy==1.14.0", "networkx==2.8.8", "tqdm==4.70.1"),
    *("chardet==7.7.0", "pybtex==0.26.1", "langdetect==1.0.9", "jieba==0.42.1"),
    *("seqeval==1.2.2", "syntok==1.4.4", "whoosh==2.7.4", "numba==0.56.4", "pydantic==1.10.13"),
    *("catalogue==2.0.10", "toml==0.10.2", "dill==0.3.6", "dm-tree==0.1.8", "tabulate==0.10.0"),
    *("colorama==0.4.6", "PyYAML==6.0.4", "typeguard==2.13.3", "cloudpickle==3.1.3"),
    *("combo==0.1.3", "transformers==4.25.1", "scikit-image==0.20.0", "nibabel==5.2.1"),
    "setuptools==80.9.0",  # newer ones have no pkg_resources, which sciann imports
)
# Packages of 2019 to 2023 for the Keras of TensorFlow 2.10, whose needs ask for other versions.
FOR_TENSORFLOW_2_10 = (
    "--ignore-requires-python",  # stellargraph asks for Python 3.8 or older
    *("adabelief-tf==0.2.1", "tf-madgrad==1.0.2", "keras-adabound==0.6.0", "params-flow==0.8.2"),
    *("keras-rectified-adam==0.20.0", "one-cycle-tf==0.0.3", "keras-buoy==0.1.4.1"),
    *("alt-model-checkpoint==2.0.3", "tensorflow-lattice==2.0.11", "sciann==0.6.8.6"),
    *("tensorflow-model-remediation==0.1.7", "pyod==1.0.9", "alibi-detect==0.10.5"),
    *("keras-gcn==0.15.0", "keras-transformer==0.40.0", "ktrain==0.37.6", "stellargraph==1.2.1"),
    *("keras-bert==0.89.0", "keras-multi-head==0.29.0", "keras-self-attention==0.51.0"),
    *("keras-position-wise-feed-forward==0.8.0", "keras-layer-normalization==0.16.0"),
    *("keras-embed-sim==0.10.0", "keras-pos-embd==0.13.0", "py-params==0.10.2"),
    *("dm-sonnet==2.0.1", "tensorflow-hub==0.12.0", "fastprogress==1.0.3", "cchardet==2.1.7"),
    *("keras-swa==0.1.7", "gradient-centralization-tf==0.0.3", "tensorflow-similarity==0.17.1"),
    *("voxelmorph==0.2", "neurite==0.2", "pystrum==0.4", "n2v==0.3.3", "csbdeep==0.7.4"),
)
SAY_VERSION = "import keras; print(keras.__version__)"
# What compiles for an NVIDIA GPU without one, for `accelerators`.
FOR_A_GPU = "jax==0.10.2", "jax-cuda12-plugin==0.10.2", "jax-cuda12-pjrt==0.10.2", "optax==0.2.8"
nox.options.sessions = ["pure", "keras3_tensorflow", "keras3_jax", "summary"]


@nox.session
def pure(session):
    """The first tier, without any framework."""
    session.install(str(PROJECT), "numpy", "pytest>=7")
    check(session, "pure", "pure")


@nox.session
def mutations(session):
    """How many small mistakes in a file the first tier notices: at least 80% in each."""
    session.install("numpy", "pytest>=7")
    session.run("python", str(TESTS / "support" / "mutate.py"), "--least", "0.8", *session.posargs)


@nox.session
def keras3_tensorflow(session):
    requirements = "tensorflow==2.21.*", *group("notebooks")
    check_host(session, "keras3", "[tensorflow]", *requirements, KERAS_BACKEND="tensorflow")


@nox.session
def keras3_jax(session):
    check_host(session, "keras3", "[jax]", *group("notebooks"), **ON_JAX)


@nox.session(python=NEWEST)
def keras3_jax_newest(session):
    """JAX as pip brings it to the newest Python, which no older Python gets."""
    if not session.python:
        skip(session, "the newest JAX needs Python 3.12 or 3.13; none is installed")
    check_host(session, "keras3", "[jax]", *group("notebooks"), **ON_JAX)


@nox.session(python=NEWEST)
def keras3_torch_newest(session):
    """PyTorch as pip brings it to the newest Python, for the weekly workflow."""
    if not session.python:
        skip(session, "no Python 3.12 or 3.13 is installed")
    check_host(session, "keras3", "[torch]", KERAS_BACKEND="torch")


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def keras_nightly(session, backend):
    """The second tier and files on Keras's nightly, weekly and before a release."""
    session.install("--no-compile", str(PROJECT), *group("test"), "keras-nightly", backend)
    # A package that needs Keras may have put the released one in its place.
    version = session.run("python", "-c", SAY_VERSION, silent=True).split()[-1]
    if "dev" not in version:
        session.error(f"not a nightly, but keras {version}")
    chosen = "-m", "not thorough or each_version"
    check(session, "keras3", ".", *EACH_HOST, *chosen, KERAS_BACKEND=backend)
    if backend == "torch":  # `fit` with DistributedDataParallel, which no released Keras has
        chosen = "-m", "thorough", "-k", "two_processes_of_torch or equals_one_device"
        check(session, "keras3", ".", *chosen, KERAS_BACKEND=backend)


@nox.session
@nox.parametrize("backend", ["jax", "torch"], ids=["jax", "torch"])
def keras3_oldest(session, backend):
    """What may differ between versions, on the oldest Keras 3, for the weekly workflow."""
    session.install("--no-compile", f"{PROJECT}[{backend}]", *group("test"), "keras==3.10.*")
    check(session, "keras3", ".", *EACH_HOST, *OLDEST_KERAS_3, KERAS_BACKEND=backend)


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def keras3_versions(session, backend):
    """Train on each minor version of Keras 3, one after the other in one environment."""
    session.install("--no-compile", f"{PROJECT}[{backend}]", *group("test"))
    settings = ON_JAX if backend == "jax" else {"KERAS_BACKEND": backend}
    for version in KERAS_3:
        session.install("--no-compile", f"keras=={version}.*")
        check(session, "keras3", *EACH_VERSION, **settings)


@nox.session
def keras3_torch(session):
    check_host(session, "keras3", "[torch]", "torch==2.13.0", KERAS_BACKEND="torch")


@nox.session(venv_backend="none")
def tf_keras(session):
    """tf_keras: Keras 2 beside Keras 3, in the environment of keras3_tensorflow."""
    check_tf_keras(session, "tf_keras")


@nox.session(venv_backend="none")
def tf_keras_new(session):
    """The optimizers of tf_keras that aren't legacy, in the environment of keras3_tensorflow."""
    check_tf_keras(session, "tf_keras_new")


@nox.session(python=find_python("3.11", "3.10", "3.9"))
def tf_keras_2_15(session):
    """The last TensorFlow whose own tf.keras is Keras 2."""
    if not session.python:
        skip(session, "TensorFlow 2.15 needs Python 3.9, 3.10 or 3.11; none is installed")
    check_host(session, "tf_keras", "", "tensorflow-cpu==2.15.*")


@nox.session(python=find_python("3.10", "3.9"))
@nox.parametrize("tensorflow", TENSORFLOWS, ids=TENSORFLOWS)
def tf_keras_versions(session, tensorflow):
    """Train on each TensorFlow before 2.15. More tests run on the oldest one."""
    if not session.python:
        skip(session, "TensorFlow 2.8 to 2.14 need Python 3.9 or 3.10; none is installed")
    versions = f"tensorflow-cpu=={tensorflow}.*", "protobuf<3.21", "numpy<1.24"
    session.install("--no-compile", str(PROJECT), *group("test"), *versions)
    # TensorFlow and the packages that it imports warn of each other.
    check(session, "tf_keras", *EACH_VERSION, "-W", "ignore::DeprecationWarning")
    if tensorflow == TENSORFLOWS[0]:
        files = (f"numbers/test_{name}.py" for name in ("equivalence", "every_optimizer", "window"))
        # Its BackupAndRestore has fewer arguments.
        chosen = "-k", "not test_backup_and_restore"
        check(session, "tf_keras", "state/test_saving.py", *files, *chosen)


@nox.session(python=find_python("3.11"))
def works_with(session):
    """Other people's callbacks and models, on TensorFlow. Prints the rows of docs/works_with.md.

    `nox -s works_with -- tensorflow jax torch` runs all tests on these backends.
    """
    torch = ["torch==2.13.0"] if "torch" in session.posargs else []
    install_for_rows(session, "[jax]", *WORKS_WITH, *torch)
    tests = [f"works_with/test_{name}.py" for name in ("callbacks", "jax_privacy", "keras_hub")]
    print_rows(session, session.posargs or ["tensorflow"], *tests, "works_with/test_remat.py")


@nox.session(python=find_python("3.11"))
def works_with_packages(session):
    """Layers, loaders and trainers for Keras 3. Prints their rows of docs/works_with.md."""
    install_for_rows(session, "", *PACKAGES)
    session.install("--no-compile", "--no-deps", *WITHOUT_ITS_NEEDS)
    names = "keras_layers", "more_keras_layers", "scikeras", "torch_trainers"
    print_rows(session, ["jax", "torch"], *(f"works_with/test_{name}.py" for name in names))


@nox.session(python=find_python("3.11"))
def works_with_tf_keras(session):
    """Packages for tf_keras. Prints their rows of docs/works_with.md."""
    install_for_rows(session, "", *FOR_TF_KERAS)
    session.install("--no-compile", "--no-deps", *FOR_TF_KERAS_ALONE)
    names = "on_tf_keras", "more_on_tf_keras", "science_on_tf_keras"
    print_rows(session, ["tf_keras"], *(f"works_with/test_{name}.py" for name in names))


@nox.session(python=find_python("3.11", "3.10", "3.9"))
def works_with_addons(session):
    """Packages on TensorFlow 2.15. Prints their rows of docs/works_with.md."""
    install_for_rows(session, "", *ADDONS)
    session.install("--no-compile", "--no-deps", *ADDONS_ALONE)
    names = ("", "losses_", "rules_")
    tests = [f"works_with/test_{name}on_tensorflow_2_15.py" for name in names]
    tests += [f"works_with/test_{name}.py" for name in ("addons", "opennmt")]
    print_rows(session, ["addons"], *tests)


@nox.session(python=find_python("3.7"), venv_backend="venv")  # too old for virtualenv
def works_with_keras2(session):
    """Packages for Keras 2.2.4. Prints their rows of docs/works_with.md."""
    install_for_rows(session, "[keras2]", *NEEDS_ON_KERAS_2)
    session.install("--no-compile", "--no-deps", *FOR_KERAS_2)
    print_rows(session, ["keras2"], "works_with/test_on_keras_2.py")


@nox.session(python=find_python("3.10", "3.9"))
def works_with_tensorflow_2_10(session):
    """Packages on TensorFlow 2.10. Prints their rows of docs/works_with.md."""
    install_for_rows(session, "", *NEEDS_ON_TENSORFLOW_2_10)
    session.install("pip==23.3.2")  # newer ones refuse ktrain, one of whose extras is a link
    session.install("--no-compile", "--no-deps", *FOR_TENSORFLOW_2_10)
    tests = [f"works_with/test_{name}on_tensorflow_2_10.py" for name in ("", "more_")]
    print_rows(session, ["tensorflow_2_10"], *tests)


def install_for_rows(session, extra, *requirements):
    if not session.python:
        skip(session, "the packages are pinned for a Python that isn't installed")
    session.install("--no-compile", f"{PROJECT}{extra}", *group("test"), *requirements)


def print_rows(session, names, *tests):
    """Run these tests on each backend, or on a Keras 2, and print their rows."""
    rows = {name: Path(session.create_tmp(), f"{name}.json").resolve() for name in names}
    for name, file in rows.items():
        file.unlink(missing_ok=True)
        settings = {"KERAS_ACCUM_TEST_WORKS_WITH": str(file)}
        host = "tf_keras"
        if name in BACKENDS:
            host, settings["KERAS_BACKEND"] = "keras3", name
        elif name == "tf_keras":
            settings["TF_USE_LEGACY_KERAS"] = "1"
        elif name == "keras2":
            host = "keras2"
        check(session, host, *tests, "-m", "thorough", posargs=(), **settings)
    session.run("python", "docs/site/rows_of_works_with.py", *map(str, rows.values()))


@nox.session
def accelerators(session):
    """What XLA compiles for an H100: wheels alone, no GPU and no driver."""
    session.install("--no-compile", f"{PROJECT}[jax]", *group("test"), *FOR_A_GPU)
    settings = {"KERAS_ACCUM_TEST_ACCELERATORS": "1", "JAX_PLATFORMS": "cpu"}
    check(session, "keras3", "numbers/test_accelerators.py", KERAS_BACKEND="jax", **settings)


@nox.session(python=find_python("3.7"), venv_backend="venv")  # too old for virtualenv
def keras2(session):
    """Keras 2.2.4: the standalone Keras that ran on TensorFlow 1."""
    if not session.python:
        skip(session, "TensorFlow 1.15 needs Python 3.7; it isn't installed")
    check_host(session, "keras2", "[keras2]", "keras==2.2.4")


@nox.session(venv_backend="none")
def keras2_3(session):
    """Keras 2.3.1, in the environment of the session keras2."""
    if not find_python("3.7"):
        skip(session, "TensorFlow 1.15 needs Python 3.7; it isn't installed")
    python = python_of(session, "keras2", "keras==2.3.1")
    check(session, "keras2", ".", *EACH_HOST, python=python)


@nox.session
def docs(session):
    """Build the site in build/site with warnings as errors, and check its links."""
    session.install("--no-compile", str(PROJECT), *group("docs"))
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
    session.run("python", "docs/site/check_site.py", "build/site")


@nox.session
def lint(session):
    """The style, by the rules in pyproject.toml."""
    session.install("ruff==0.17.5")
    session.run("ruff", "check", str(PROJECT))
    session.run("ruff", "format", "--check", str(PROJECT))


@nox.session
def package(session):
    """Build, check, install and try what a release uploads: the wheel and the sdist.

    `nox -s package -- sdist` also runs the sdist's tests of files, on JAX and the installed wheel.
    """
    session.install("build", "twine", "readme_renderer[md]", "trove-classifiers", "pytest>=7")
    folder = Path(session.create_tmp(), "package").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(folder), str(PROJECT), silent=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    session.run("twine", "check", "--strict", str(wheel), str(sdist))

    settings = {"KERAS_ACCUM_TEST_BUILT": str(folder), "KERAS_BACKEND": "jax"}
    pytest = "-m", "pytest", "-q", "-p", "no:cacheprovider"
    session.run("python", *pytest, "--noconftest", str(TESTS / "package/built.py"), env=settings)

    # Run the sdist's tests on the installed files, the first tier without any framework.
    shutil.unpack_archive(sdist, folder)
    session.chdir(folder / sdist.name[: -len(".tar.gz")] / "tests")
    tested = [("", sdist, "pure")]
    if "sdist" in session.posargs:
        tested += [("[jax]", wheel, "state/test_saving.py")]
    for extra, file, tests in tested:
        session.run("python", "-m", "venv", str(folder / tests))
        python = str(folder / tests / "bin" / "python")
        install = "-m", "pip", "install", "--no-compile"
        needs = f"{file}{extra}", "numpy", "pytest>=7"
        session.run(python, *install, *needs, external=True, silent=True)
        session.run(python, *pytest, *SECOND_TIER, tests, env=settings, external=True)
    # This form of pyright brings its own Node.js.
    session.install("basedpyright==1.40.2", "mypy==2.4.1")
    with_keras = python_of(session, "keras3_jax")
    session.run("basedpyright", "--pythonpath", with_keras, "package/typed_uses.py")
    mypy = "mypy", "--warn-unused-ignores", "--disable-error-code=import-untyped"  # Keras's own
    session.run(*mypy, f"--python-executable={with_keras}", "package/typed_uses.py")


@nox.session(venv_backend="none")
def rest(session):
    """Run the tests that `nox` leaves out, of all sessions or of those named after `--`."""
    for name in session.posargs or REST:
        session.notify(name, posargs=REST[name])
    session.notify("summary", posargs=["rest"])


@nox.session(venv_backend="none")
def weekly(session):
    """Run what no change waits for, of all sessions or of those named after `--`."""
    for name in session.posargs or WEEKLY:
        session.notify(name, posargs=WEEKLY[name])
    session.notify("summary", posargs=["rest"])


@nox.session(venv_backend="none")
def fuzz(session):
    """Run 1000 new random trainings, or KERAS_ACCUM_TEST_FUZZ many, on the named sessions."""
    os.environ.setdefault("KERAS_ACCUM_TEST_FUZZ", "1000")
    for name in session.posargs or ["keras3_jax"]:
        session.notify(name, posargs=["-n0", "-s", "-k", "test_random_trainings"])
    session.notify("summary", posargs=["rest"])


def python_of(session, other, *requirements):
    """Install these in the environment of another session, and return its Python."""
    python = PROJECT / Path(session.cache_dir).parent / other / "bin" / "python"
    if not python.exists():
        make = "-m", "nox", "--install-only", "-s", other
        session.run_install(sys.executable, *make, external=True)
    if requirements:
        install = "-m", "pip", "install", "--no-compile"
        session.run_install(str(python), *install, *requirements, external=True, silent=True)
    return str(python)


def check_tf_keras(session, host):
    requirements = f"{PROJECT}[legacy]", *group("test"), "tf_keras==2.21.*"
    python = python_of(session, "keras3_tensorflow", *requirements)
    check(session, host, ".", *EACH_HOST, python=python, TF_USE_LEGACY_KERAS="1")


def check_host(session, host, extra, *requirements, **environment):
    """Run one host's tests on the built wheel with an extra and exactly these `requirements`."""
    # Most modules of a framework are never imported, so compiling them wastes time.
    session.install("--no-compile", f"{PROJECT}{extra}", *group("test"), *requirements)
    check(session, host, ".", *EACH_HOST, **environment)


def check(session, host, folder, *options, python="python", posargs=None, **environment):
    settings = {"KERAS_BACKEND": None, "TF_USE_LEGACY_KERAS": None, **environment}
    settings.update(KERAS_ACCUM_TEST_HOST=host, TF_CPP_MIN_LOG_LEVEL="2")
    # The folder for files that one host saves and another one loads.
    files = PROJECT / session.cache_dir / "files"
    files.mkdir(exist_ok=True)
    settings["KERAS_ACCUM_TEST_FILES"] = str(files)
    # Tests compile the same programs again and again, in many processes.
    settings["JAX_COMPILATION_CACHE_DIR"] = str(PROJECT / session.cache_dir / "jax")
    settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    settings["KERAS_ACCUM_TEST_SUMMARY"] = str(said(session, "did not finish"))
    posargs = session.posargs if posargs is None else posargs
    # Pytest uses the last `-m` and `-r` of several. `summary` counts what is skipped.
    chosen = *SECOND_TIER, "-rfE", *options, *posargs
    with session.chdir(TESTS):
        command = python, "-m", "pytest", folder, *chosen
        session.run(*command, env=settings, external=python != "python")
    if folder == "." and (not session.posargs or tuple(session.posargs) in REST.values()):
        note_versions(session, python)


def note_versions(session, python):
    """Keep what was installed for tests that passed, for docs/site/tested_versions.py."""
    program = "docs/site/tested_versions.py", "--list"
    versions = session.run(python, *program, silent=True, external=python != "python")
    if versions:  # not with --install-only
        file = PROJECT / session.cache_dir / "versions" / f"{session.name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(versions.splitlines()[-1])


# -- the summary at the end ----------------------------------------------------------------------


def said(session, *lines):
    """Write these lines to the session's file for `summary`, and return its path."""
    file = PROJECT / session.cache_dir / "said" / session.name
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines))
    return file


def skip(session, reason):
    said(session, f"skipped: {reason}")
    session.skip(reason)


@nox.session(venv_backend="none")
def summary(session):
    """Print what earlier sessions ran and how to run the rest; after `rest`, what was skipped."""
    if session.posargs != ["rest"]:
        session.log("Not run: other hosts, versions and rows; several processes, kills, notebooks.")
        session.log("To run these in about 20 minutes: .venv/bin/nox -r -s rest")
    folder = PROJECT / session.cache_dir / "said"
    for file in sorted(folder.glob("*"), key=lambda file: file.stat().st_mtime):
        first, *others = file.read_text().splitlines() or [""]
        session.log(f"{file.name}: {first}")
        for line in others if session.posargs == ["rest"] else ():
            session.log(f"    {line}")
        file.unlink()
