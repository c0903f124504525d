"""float16 and bfloat16 in files, and in states that are passed on."""

import io
import json
import zipfile

import hosts
import numpy as np
import pytest
from formats import assert_same, everything
from hosts import accum, keras
from training import LENGTH, compiled, go_on

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
tf_keras_only = pytest.mark.skipif(
    not hosts.IS_LEGACY, reason="only legacy optimizers are restored while they are built"
)

STOP = LENGTH + 2
EAGER = {} if hosts.IS_KERAS2 else {"run_eagerly": True}
HALVES = ["float16"] if hosts.IS_KERAS2 else ["float16", "bfloat16"]


def adam():
    return hosts.ours("Adam", learning_rate=2**-5, epsilon=2**-10, accum_iters=LENGTH)


def model_of(dtype, names=(None, None)):
    layers = [
        keras.layers.Dense(4, activation="tanh", name=names[0], dtype=dtype),
        keras.layers.Dense(2, name=names[1], dtype=dtype),
    ]
    model = hosts.sequential((3,), layers)
    return compiled(model, adam(), hosts.mean_squared_error(), **EAGER)


# -- checkpoints -------------------------------------------------------------------------------


def checkpoint(model):
    return hosts.tf.train.Checkpoint(model=model, optimizer=model.optimizer)


@tf_keras_only
@pytest.mark.parametrize("dtype", [*HALVES, "mixed_float16"])
def test_a_checkpoint_of_a_model_that_is_built_again(dtype, tmp_path):
    """The process numbers its layers: the model built again has `dense_2` where it had `dense`."""
    source = go_on(model_of(dtype), 0, STOP)
    path = checkpoint(source).save(str(tmp_path / "m"))
    model = model_of(dtype)
    assert {w.name for w in model.weights}.isdisjoint({w.name for w in source.weights})
    checkpoint(model).restore(path).assert_consumed()
    scaled = getattr(source.optimizer, "inner_optimizer", source.optimizer)
    assert np.any(scaled.get_state()["accumulator.0"])
    assert_same(everything(model), everything(source))
    assert_same(everything(go_on(model, STOP)), everything(go_on(source, STOP)))


# -- states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_state_in_a_file_of_numpy(dtype, built):
    """NumPy's files have no bfloat16."""

    def made():
        return [hosts.variable(np.ones(s), f"v{i}", dtype) for i, s in enumerate([(2, 3), (3,)])]

    optimizer, vs = adam(), made()
    for step in range(STOP):
        grads = [np.full(hosts.array(v).shape, 0.3 + step) for v in vs]
        hosts.apply(optimizer, [g.astype(hosts.array(v).dtype) for g, v in zip(grads, vs)], vs)
    state = optimizer.get_state()
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    other, others = adam(), made()
    if built:
        hosts.build_on(other, others)
    other.set_state(dict(np.load(file)))
    hosts.build_on(other, others)
    assert_same(other.get_state(), state)


# -- mixed precision by a global policy --------------------------------------------------------


@pytest.fixture
def policy():
    hosts.set_floatx("float32")
    return keras.mixed_precision.set_global_policy


@pytest.mark.skipif(
    not hosts.IS_TF_KERAS, reason="test_loss_scale.py tests mixed precision in Keras 3's files"
)
@pytest.mark.parametrize("extension", ["keras", "h5"])
def test_a_mixed_model_where_the_policy_is_not_set(extension, policy, tmp_path):
    """The file has the LossScaleOptimizer, so it is restored without the policy."""
    policy("mixed_float16")
    source = go_on(model_of(None), 0, STOP)
    path = str(tmp_path / f"m.{extension}")
    source.save(path)
    policy("float32")
    if extension == "h5":  # Keras looks for the inner optimizer by its bare name
        with pytest.raises(ValueError, match="Unknown optimizer: 'AdamAccumulate'"):
            keras.models.load_model(path)
    names = {"AdamAccumulate": accum.AdamAccumulate} if extension == "h5" else None
    model = keras.models.load_model(path, custom_objects=names)
    model.run_eagerly = True
    assert model.optimizer.inner_optimizer.window_position == 2
    assert_same(everything(model), everything(source))
    assert_same(everything(go_on(model, STOP)), everything(go_on(source, STOP)))


@pytest.mark.skipif(
    not hosts.IS_TF_KERAS, reason="test_loss_scale.py tests mixed precision in Keras 3's files"
)
def test_a_file_without_the_loss_scale_optimizer(policy, tmp_path):
    """Release 0.1.0 wrote such files. Without the policy, a warning says the state isn't read."""
    policy("mixed_float16")
    path = str(tmp_path / "m.keras")
    go_on(model_of(None), 0, STOP).save(path)
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    config = json.loads(parts["config.json"])
    scaled = config["compile_config"]["optimizer"]
    config["compile_config"]["optimizer"] = scaled["config"]["inner_optimizer"]
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {**parts, "config.json": json.dumps(config)}.items():
            file.writestr(name, content)
    model = keras.models.load_model(path)
    assert model.optimizer.inner_optimizer.window_position == 2
    policy("float32")
    with pytest.warns(UserWarning, match="holds no state of Adam.*LossScaleOptimizer"):
        model = keras.models.load_model(path)
    assert (model.optimizer.completed_updates, model.optimizer.window_position) == (0, 0)
