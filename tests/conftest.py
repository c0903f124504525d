import hosts
import pytest

# Warnings are errors here, but these are about the hosts' own code.
IGNORED = [
    r"__array__ implementation doesn't accept a copy keyword:DeprecationWarning",  # Keras on torch
    r"non-integer arguments to randrange:DeprecationWarning",  # Keras 2.15's seeds
    r"`torch.jit.script_method` is deprecated:DeprecationWarning",  # torch.compile itself
]


def pytest_configure(config):
    for warning in IGNORED:
        config.addinivalue_line("filterwarnings", f"ignore:{warning}")


@pytest.fixture(autouse=True)
def same_start():
    """Each test begins with the same data type and random numbers."""
    hosts.keras.backend.set_floatx(hosts.FLOATX)
    hosts.keras.utils.set_random_seed(0)
