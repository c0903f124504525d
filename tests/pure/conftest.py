import pytest


@pytest.fixture(autouse=True)
def same_start():
    """No framework is here, so that there is nothing to begin anew."""
