import hosts
import pytest
from cases import FEW, NEEDED

# Warnings are errors here, but these are about the hosts' own code.
IGNORED = [
    r"__array__ implementation doesn't accept a copy keyword:DeprecationWarning",  # Keras on torch
    r"non-integer arguments to randrange:DeprecationWarning",  # Keras 2.15's seeds
    r"`torch.jit.script_method` is deprecated:DeprecationWarning",  # torch.compile itself
]
if hosts.IS_KERAS2:  # Python 3.7's opinion of TensorFlow 1, Keras and their time
    IGNORED = [":DeprecationWarning", ":FutureWarning", ":PendingDeprecationWarning"]
    collect_ignore = [
        "test_callback_order.py",
        "test_distribution.py",
        "test_drop_in.py",
        "test_ema.py",
        "test_graph.py",
        "test_host_gate.py",
        "test_loops.py",
        "test_loss_scale.py",
        "test_main_job.py",
        "test_monitor.py",
        "test_said_weights.py",
        "test_weighted.py",
    ]
else:
    collect_ignore = ["test_keras2.py"]


def pytest_configure(config):
    for warning in IGNORED:
        config.addinivalue_line("filterwarnings", f"ignore:{warning}")


def pytest_collection_modifyitems(items):
    """After the plain promise, which all rows of the table are put to, some rows are enough."""
    items[:] = [item for item in items if item.originalname == "test_plain" or _is_needed(item)]


def _is_needed(item):
    given = getattr(getattr(item, "callspec", None), "params", {})
    case = given.get("case", FEW["adam"])
    if given.get("every_gate") == "branch":  # which has no mathematics
        return case == FEW["adam"]
    return case in NEEDED.values()


@pytest.fixture(params=["arithmetic", "branch"])
def every_gate(request, monkeypatch):
    """All of our optimizers are gated in one way and then in the other."""
    monkeypatch.setattr(hosts, "GATE", {"gate": request.param})


@pytest.fixture(autouse=True)
def same_start():
    """Each test begins with the same data type and random numbers."""
    hosts.set_floatx(hosts.FLOATX)
    hosts.set_random_seed()


@pytest.fixture(scope="session")
def strategy():
    """Two replicas. One for all tests: a second one's collectives are taken for the first's."""
    strategy = hosts.tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    return strategy
