"""Files of the project that must agree with each other."""

import ast
import re
from pathlib import Path

import pytest

import keras_accum

PROJECT = Path(__file__).resolve().parents[2]
MODULES = sorted(Path(keras_accum.__file__).parent.rglob("*.py"))


def read(name):
    return (PROJECT / name).read_text("utf-8")


def test_the_citation_is_of_this_version():
    assert f"\nversion: {keras_accum.__version__}\n" in read("CITATION.cff")


def test_one_place_has_the_url_of_the_repository():
    """The long description, the site, its links for editing and those to Colab read it there."""
    url = ast.literal_eval(re.search(r"^REPOSITORY = (.+)", read("setup.py"), re.M).group(1))
    patterns = "*.*", "docs/**/*.*", "notebooks/*.*", ".github/**/*.*", "keras_accum/**/*.*"
    kinds = {".md", ".py", ".yml", ".html", ".toml", ".cff", ".ipynb", ".txt"}
    files = {path for pattern in patterns for path in PROJECT.glob(pattern) if path.suffix in kinds}
    assert len(files) > 100
    texts = {path.name: path.read_text("utf-8") for path in files}
    assert [name for name in texts if url and url in texts[name]] == ["setup.py"] * bool(url)
    placeholder = re.compile(r"\bexample\.(invalid|com|org)\b|\bOWNER/")
    assert [name for name in texts if placeholder.search(texts[name])] == []


# What `WHERE` says of the names in the `__all__` of each Keras's module.
IN_ALL = {
    "keras2": ("every Keras",),
    "tf_keras": ("every Keras", "Keras 3 and tf_keras", "Keras 3, and tf_keras since"),
    "keras3": ("every Keras", "Keras 3"),
}


@pytest.mark.parametrize("module", IN_ALL)
def test_the_public_names_are_literals(module):
    """Type checkers understand no others: mypy finds no `AdamAccumulate` in computed lists."""
    nodes = [*ast.walk(ast.parse(read(f"keras_accum/{module}/__init__.py")))]
    lists = [n for n in nodes if isinstance(n, (ast.Assign, ast.AugAssign))]
    lists = [n for n in lists if "__all__" in ast.unparse(getattr(n, "targets", [n])[0])]
    names = [name for node in lists for name in ast.literal_eval(node.value)]
    where = keras_accum.WHERE.items()
    assert sorted(names) == sorted(n for n, text in where if text.startswith(IN_ALL[module]))


def test_a_package_index_shows_no_relative_link():
    """Once setup.py has a URL, README's links and pictures are of this version and exist."""
    url = "https://github.com/some/repository"
    _, rest = read("setup.py").split("# A link or an image", 1)
    names = {"re": re, "REPOSITORY": url, "VERSION": "1.2.3"}
    exec("#" + rest.partition("\nURLS = ")[0], names)
    found = names["with_absolute_links"](read("README.md"))
    assert "```diff" in found and not re.findall(r"\]\((?!https://|#)[^)]*\)", found)
    files = re.findall(rf"\]\({url}/(?:blob|raw)/v1\.2\.3/([^)#]+)", found)
    assert len(files) > 40 and [name for name in files if not (PROJECT / name).exists()] == []
    assert "/blob/v1.2.3/docs/images/" not in found  # a page around the picture


def test_the_workflows_run_sessions_that_exist():
    nodes = ast.parse(read("noxfile.py")).body
    sessions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    text = "".join(path.read_text("utf-8") for path in PROJECT.glob(".github/workflows/*.yml"))
    named = " ".join(re.findall(r"nox -s ([\w ]+?)(?: --|$)", text, re.M)).split()
    assert {"docs", "package", "pure", "rest"} <= {*named} <= sessions
    (hosts,) = re.findall(r"host:\n((?: +- \w+\n)+)", text)
    lists = ", ".join(re.findall(r"(?:session|host): \[(.*)\]", text))
    assert {*re.findall(r"\w+", hosts), *lists.split(", ")} <= sessions


def test_each_action_is_pinned_by_a_hash():
    text = "".join(path.read_text("utf-8") for path in PROJECT.glob(".github/workflows/*.yml"))
    used = re.findall(r"uses: (.*)", text)
    pinned = [use for use in used if re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v[\d.]+", use)]
    assert len(used) > 20 and pinned == used


def test_commits_are_checked_by_the_ruff_of_the_lint_session():
    (version,) = re.findall(r"ruff==[\d.]+", read("noxfile.py"))
    hooks = read(".pre-commit-config.yaml")
    assert hooks.count(version) == 2 == len(re.findall("entry: ruff (check|format)$", hooks, re.M))
    assert '"ruff", "format", "--check"' in read("noxfile.py")


def test_each_file_of_tests_begins_with_its_promise():
    files = (PROJECT / "tests").glob("*/test_*.py")
    found = {path.name: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for path in files}
    assert len(found) > 50
    assert [name for name, promise in found.items() if not promise] == []


def test_pytest_benchmark_may_be_installed(pytestconfig):
    """Up to 5.1 it warns beside xdist, which would end the run: here warnings are errors."""
    assert pytestconfig.pluginmanager.is_blocked("benchmark")


BACKENDS = {"jax": "JAX", "torch": "PyTorch", "tf": "TensorFlow"}
PRIVATE_MODULES = {"_utils", "__internal__", "distribute", "interim", "core"}
DOCUMENTED = {"jax.core.Tracer"}


def list_private(tree):
    """Yield (backend, name) for the private members of backends that a module names."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom, ast.Attribute)):
            continue
        text = ast.unparse(node)
        if re.search(r"(import|from) (jax\._|jax\.interp|torch\._|tensorflow\.python)", text):
            yield "an import", text
        found = re.fullmatch(r"(jax|torch|tf)\.(?:.*\.)?(\w+)", text)
        is_private = re.search(r"\._|\.core\.", text) and text not in DOCUMENTED
        if found and is_private and found[2] not in PRIVATE_MODULES:
            yield BACKENDS[found[1]], found[2]


def test_the_private_members_of_backends_are_on_the_page():
    """And each on the page is in a list that is checked by name."""
    page = read("docs/stability.md").partition("## Private members")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (JAX|PyTorch|TensorFlow) \| (.*?) \|", page, re.M)
    listed = {(backend, name) for backend, names in rows for name in re.findall(r"\w+", names)}
    texts = [path.read_text("utf-8") for path in MODULES]
    assert {pair for text in texts for pair in list_private(ast.parse(text))} <= listed
    constants = re.findall(r"^(?:OF|IN|LISTS)_.*? = (?:\([^=]+?^\)|.*)", "\n".join(texts), re.M)
    checked = "\n".join(constants)
    assert len(listed) > 10 and [name for _, name in listed if f'"{name}"' not in checked] == []


RISKY = {
    *("eval", "exec", "compile", "__import__", "allow_pickle"),
    *("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"),
}


def test_the_package_runs_nothing_that_it_reads():
    """SECURITY.md promises this."""
    found = {path: RISKY.intersection(names_in(path)) for path in MODULES}
    assert len(found) > 20 and not any(found.values())


def names_in(module):
    """Yield the names that a module uses, imports, or gives as keywords of a call."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.keyword):
            yield node.arg
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


def test_one_function_warns():
    """So every warning has our category."""
    warns = [path for path in MODULES if "warnings.warn(" in path.read_text("utf-8")]
    assert [path.parent.name for path in warns] == ["host"]
