import pytest


@pytest.fixture(autouse=True)
def same_start():
    """Replace the fixture of the other tests: without a framework there is nothing to reset."""
