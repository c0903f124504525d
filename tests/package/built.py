"""Check the sdist and the wheel that `nox -s package` has built in KERAS_ACCUM_TEST_BUILT.

Other sessions don't run this file: `python -m pytest --noconftest tests/package/built.py`.
"""

import os
import re
import subprocess
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from readme_renderer import markdown
from trove_classifiers import classifiers, deprecated_classifiers

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ["KERAS_ACCUM_TEST_BUILT"])
(SDIST,) = FOLDER.glob("*.tar.gz")
(WHEEL,) = FOLDER.glob("*.whl")


@pytest.fixture(scope="module")
def metadata():
    with zipfile.ZipFile(WHEEL) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(wheel.read(name).decode("utf-8"))


def test_metadata(metadata):
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert set(metadata.get_all("Classifier")) <= classifiers - set(deprecated_classifiers)
    extras = {"tensorflow", "jax", "torch", "legacy", "keras2", "demo"}
    assert set(metadata.get_all("Provides-Extra")) == extras


def test_the_long_description_as_an_index_shows_it(metadata):
    """The page has no relative links or images, and the files that it links to are in the sdist.

    Without a repository, it is the README, and there are no URLs.
    """
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", ()))
    readme = (PROJECT / "README.md").read_text("utf-8")
    if not urls:
        assert metadata.get_payload().strip() == readme.strip()
        assert not metadata["Home-page"]
        return
    assert all(url.startswith(urls["Source"]) for url in urls.values())
    page = markdown.render(metadata.get_payload())
    links = re.findall(r' (?:href|src)="([^"]*)"', page)
    relative = [link for link in links if not re.match(r"https?://|mailto:|#", link)]
    assert not relative, "setup.py makes links absolute, except in the style `[name]: target`"
    files = contents_of_sdist()
    shown = {*files, *(str(folder) for file in files for folder in Path(file).parents)}
    here = f"{re.escape(urls['Source'])}/(?:blob|raw)/v{metadata['Version']}/([^#]*)"
    targets = {match[1] for match in (re.match(here, link) for link in links) if match}
    assert targets and targets <= shown
    # "blob" is a page around the image, and "raw" is the image itself.
    assert not re.search(r'<img[^>]* src="[^"]*/blob/', page)
    code = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
    assert code.findall(metadata.get_payload()) == code.findall(readme)


def contents_of_sdist():
    with tarfile.open(SDIST) as sdist:
        files = [file.name for file in sdist.getmembers() if file.isfile()]
    return {name.split("/", 1)[1] for name in files}


def test_the_sdist_has_every_file_of_the_repository(tmp_path):
    # All files count as uncommitted, so that the test also works in a copy without `.git`.
    git = ["git", f"--git-dir={tmp_path}", f"--work-tree={PROJECT}"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    listing = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        check=True,
    )
    files = set(listing.stdout.decode("utf-8").split("\0")) - {""}
    missing = files - contents_of_sdist()
    assert files and not missing, "add these files to MANIFEST.in or to .gitignore"


def contents_of_wheel(wheel):
    with zipfile.ZipFile(wheel) as file:
        return sorted(name for name in file.namelist() if ".dist-info/" not in name)


def test_the_wheel_has_the_package_alone():
    expected = [
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "keras_accum").rglob("*")
        if path.suffix in (".py", ".typed")
    ]
    assert contents_of_wheel(WHEEL) == sorted(expected)
