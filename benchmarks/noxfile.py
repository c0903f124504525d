"""Make every table of README.md, docs/cost.md and docs/exactness.md.

`nox -f benchmarks/noxfile.py` runs all of these sessions, and `-s NAME` runs one. README.md says
which session makes which table. Most sessions write JSON to `results`; `report` makes all tables of
it, and the picture. Those of the hosts run `micro_batch.py`, each in its own environment. Arguments
after `--` go to the script: `nox -f benchmarks/noxfile.py -s tf_keras -- --rounds 20`.
"""

import sys
from pathlib import Path

import nox

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "support"))
from pythons import find_python  # noqa: E402

# Wheels that compile for an H100 and for a TPU, without a driver. PyTorch is for the fake device,
# TensorFlow for its replicas.
FOR_ACCELERATORS = (
    *("jax==0.10.2", "jax-cuda12-plugin==0.10.2", "jax-cuda12-pjrt==0.10.2", "libtpu==0.0.52"),
    *("keras==3.15.1", "optax==0.2.8", "torch==2.13.0", "tensorflow==2.21.0"),
)
ON_TENSORFLOW = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
PRINTED = "memory.py --rounds 2", "exactness.py", "float32.py", "launch.py"
# The packages of each group of `everybody`, and the Pythons that they can run on.
NEW = "3.11", "3.12", "3.13"
EVERYBODY = {
    "keras3": (NEW, f"{HERE.parent}[tensorflow]"),
    "optax": (NEW, "jax==0.10.2", "optax==0.2.8"),
    "torch": (
        NEW,
        "torch==2.13.0",
        "accelerate==1.15.0",
        "lightning==2.6.6",
        "transformers==5.23.0",
    ),
    "tf_keras_2_15": (("3.11", "3.10", "3.9"), "tensorflow-cpu==2.15.*"),
    "keras2": (("3.7",), f"{HERE.parent}[keras2]", "keras==2.2.4", "runai==0.4.1", "pytest"),
}


@nox.session
@nox.parametrize("backend", ["tensorflow", "jax", "torch"])
def keras3(session, backend):
    session.install(f"{HERE.parent}[{backend}]")
    measure(session, "keras3", f"keras3_{backend}", KERAS_BACKEND=backend)
    if backend == "tensorflow":  # Keras uses XLA by default only on a GPU
        measure(session, "keras3", f"keras3_{backend}_xla", "--xla", KERAS_BACKEND=backend)


@nox.session
def tf_keras(session):
    session.install(f"{HERE.parent}[legacy]")
    measure(session, "tf_keras", "tf_keras", TF_USE_LEGACY_KERAS="1")


@nox.session(python=find_python("3.11", "3.10", "3.9"))
def tf_keras_2_15(session):
    """With gradient-accumulator, whose wrappers need the tf.keras of TensorFlow up to 2.15."""
    if not session.python:
        session.skip("TensorFlow 2.15 needs Python 3.9, 3.10 or 3.11; none is installed")
    session.install(str(HERE.parent), "tensorflow-cpu==2.15.*")
    # Not an extra: it requires numpy<=1.23.2, which TensorFlow 2.15 refuses, but runs without.
    session.install("--no-deps", "gradient-accumulator==0.5.2")
    measure(session, "tf_keras", "tf_keras_2_15")


@nox.session(python=find_python("3.7"), venv_backend="venv")  # too old for virtualenv
def keras2(session):
    """With runai, and the formula of the class that was copied across the web."""
    if not session.python:
        session.skip("TensorFlow 1.15 needs Python 3.7; it isn't installed")
    session.install(f"{HERE.parent}[keras2]", "keras==2.2.4", "runai==0.4.1")
    measure(session, "keras2", "keras2")
    session.run("python", str(HERE / "repeatability.py"), "--rounds", "8")


@nox.session
def report(session):
    """Make the tables and the picture from the files in `benchmarks/results`."""
    session.install("matplotlib")
    session.run("python", str(HERE / "tables.py"))


@nox.session
def accelerators(session):
    """What a micro-batch compiles to on an H100 and a TPU, and where PyTorch waits for a GPU.

    And how often several devices reduce gradients. `-- collectives replicas` runs these two.
    """
    session.install(f"{HERE.parent}[jax]", *FOR_ACCELERATORS)
    for what in session.posargs or ("gpu", "tpu", "torch", "collectives", "replicas"):
        session.run("python", "-m", "accelerators", what)


@nox.session
def tables(session):
    """The tables that scripts print: all of them, or with `-- memory.py` one."""
    session.install(f"{HERE.parent}[tensorflow,jax,torch,legacy,demo]")
    chosen = [" ".join(session.posargs)] if session.posargs else PRINTED
    for command in chosen:
        script, *arguments = command.split()
        session.run("python", str(HERE / script), *arguments, env=ON_TENSORFLOW)


@nox.session(venv_backend="venv")  # virtualenv knows no Python 3.7
@nox.parametrize(
    "python,group", [nox.param(find_python(*EVERYBODY[g][0]), g, id=g) for g in EVERYBODY]
)
def everybody(session, group):
    """How far everybody's accumulation ends from the big batch: the table of README.md."""
    pythons, *packages = EVERYBODY[group]
    if not session.python:
        session.skip(f"{group} needs Python {' or '.join(pythons)}; its figures stay as they are")
    session.install(*packages)
    if group == "tf_keras_2_15":  # it requires numpy<=1.23.2, but runs without
        session.install("--no-deps", "gradient-accumulator==0.5.2")
    session.run("python", "-m", "everybody", group, env=ON_TENSORFLOW)


def measure(session, host, name, *options, **environment):
    settings = {"KERAS_BACKEND": None, "TF_USE_LEGACY_KERAS": None, **environment}
    settings["TF_CPP_MIN_LOG_LEVEL"] = "3"
    path = HERE / "results" / f"{name}.json"
    script = str(HERE / "micro_batch.py")
    options = *options, "--write", str(path), *session.posargs
    session.run("python", script, host, *options, env=settings)
