"""Every check of the project, each in a fresh environment: `nox -f tests/noxfile.py`.

The package is installed as a built wheel and pytest runs in this folder, where the source tree
cannot be imported: what passes here is what a user would install.
"""

import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "venv"  # from the standard library

PROJECT = Path(__file__).resolve().parent.parent

sys.path.append(str(PROJECT / "tests"))
from pythons import find_python  # noqa: E402


@nox.session
def lint(session):
    """The style, by the rules in pyproject.toml."""
    session.install("ruff==0.17.5")
    session.run("ruff", "check", str(PROJECT))


@nox.session(python=find_python("3.7"))
@nox.parametrize("keras", ["2.2.4", "2.3.1"])
def keras2(session, keras):
    """The standalone Keras that ran on TensorFlow 1; before the others, which go on from there."""
    if not session.python:
        session.skip("TensorFlow 1.15 needs Python 3.7, and it isn't here")
    some = SECOND_VERSION if keras == "2.3.1" else ()
    check(session, "keras2", "keras2", f"keras=={keras}", some=some)


@nox.session
def keras3_tensorflow(session):
    extras = "tensorflow,notebooks"
    check(session, "keras3", extras, "tensorflow==2.21.*", KERAS_BACKEND="tensorflow")


@nox.session
def keras3_jax(session):
    check(session, "keras3", "jax", KERAS_BACKEND="jax")


@nox.session
def keras3_torch(session):
    check(session, "keras3", "torch", "torch==2.13.0", KERAS_BACKEND="torch")


@nox.session
def tf_keras(session):
    """Keras 2 beside a TensorFlow whose own Keras is 3."""
    pins = "tensorflow==2.21.*", "tf_keras==2.21.*"
    check(session, "tf_keras", "legacy", *pins, TF_USE_LEGACY_KERAS="1")


@nox.session(python=find_python("3.11", "3.10", "3.9"))
def tf_keras_2_15(session):
    """The last TensorFlow whose own tf.keras is Keras 2."""
    if not session.python:
        session.skip("TensorFlow 2.15 needs Python 3.9, 3.10 or 3.11, and none of them is here")
    check(session, "tf_keras", None, "tensorflow-cpu==2.15.*", some=SECOND_VERSION)


# On a second version of a host: not what depends on this package alone and takes long.
SECOND_VERSION = (
    "-k",
    "not killed and not other_numbers and not branch"
    " and (big_batch or not test_host_gate) and (plain or not test_window)"
    " and (masked or replicas or not test_weighted) and (logged or tensorboard or not test_monitor)"
    " and not test_rules and not test_loops and not test_contributing",
)


def check(session, host, extras, *requirements, some=(), **environment):
    """Run the tests of one host, on the wheel with `extras` and on exactly these `requirements`."""
    extras = f"{extras},test" if extras else "test"
    # Most modules of a framework are never imported: no byte code for those.
    session.install("--no-compile", f"{PROJECT}[{extras}]", *requirements)
    settings = {"KERAS_BACKEND": None, "TF_USE_LEGACY_KERAS": None, **environment}
    settings.update(KERAS_ACCUM_TEST_HOST=host, TF_CPP_MIN_LOG_LEVEL="2")
    # What one host saves for another to load.
    files = Path(session.cache_dir, "files")
    files.mkdir(exist_ok=True)
    settings["KERAS_ACCUM_TEST_FILES"] = str(files)
    # Each worker holds a framework in memory. The tests of a file, which share its fixtures, stay
    # on one worker as far as possible.
    workers = "--numprocesses=auto", "--maxprocesses=4", "--dist=worksteal"
    session.run("python", "-m", "pytest", *workers, *some, *session.posargs, env=settings)
