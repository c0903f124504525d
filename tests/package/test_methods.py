"""Every method of a stock class that a subclass may override: when it is called."""

import hosts
import pytest
from cases import quick_first
from hosts import accum, keras
from steps import variables
from training import LENGTH

if hosts.IS_KERAS2 or hosts.BACKEND == "jax":
    # JAX runs eagerly what is traced elsewhere, and test_keras2.py has a table of its own.
    pytest.skip("about steps whose switch Python knows", allow_module_level=True)
optimizers = hosts.optimizers

# In a subclass of ours, a method is called as in one of the stock class: once per update, on every
# micro-batch, or when the variables are made. What would be called otherwise is refused. The others
# are for the methods of a subclass, for files, for users and for graphs of TensorFlow 1.
WHEN = {
    "update": """_decayed_lr _distributed_apply _prepare _prepare_local _resource_apply_dense
        _transform_gradients""",
    "micro-batch": """_aggregate_gradients _assert_valid_dtypes _compute_gradients _get_gradients
        _transform_loss _valid_dtypes apply_gradients minimize""",
    "first": """_create_all_weights _create_hypers _create_slots _restore_slot_variable
        _create_slots_for_sharded_variables add_slot add_weight""",
    "refused": "_transform_unaggregated_gradients",
    # `_resource_apply_sparse` is refused when a sparse gradient comes: see test_accumulating.py.
    "others": """_resource_apply_sparse _resource_apply_sparse_duplicate_indices
        _call_if_callable _create_or_restore_slot_variable _dense_apply_args
        _distribution_strategy_scope _fallback_apply_state _get_hyper _init_set_name
        _resource_scatter_add _resource_scatter_update _serialize_hyperparameter _set_hyper
        _sparse_apply_args clipnorm clipvalue from_config get_config get_gradients get_slot
        get_slot_names get_updates get_weights global_clipnorm iterations set_weights variables
        weights""",
}
if hosts.IS_NEW_STYLE:  # `_update_step_xla` is for GPUs, `_rms` and `add_variable` for Adafactor
    WHEN = {
        "update": """_apply_weight_decay _clip_gradients _compute_current_learning_rate
            _deduplicate_sparse_grad _distributed_apply_gradients_fn _internal_apply_gradients
            _update_model_variables_moving_average _update_step _use_weight_decay update_step""",
        "micro-batch": "aggregate_gradients apply_gradients compute_gradients minimize",
        "first": "_build_index_dict add_variable_from_reference build",
        "refused": "_overwrite_model_variables_with_average_value _var_key",
        "others": """_build_learning_rate _create_iteration_variable _process_kwargs _rms
            _create_or_restore_slot_variable _serialize_hyperparameter _trackable_children
            _update_step_xla add_variable exclude_from_weight_decay finalize_variable_values
            from_config get_config iterations learning_rate load_own_variables lr
            save_own_variables set_weights variables""",
    }
if hosts.IS_KERAS3:
    WHEN = {
        "update": """_apply_weight_decay _backend_apply_gradients _backend_update_step
            _check_variables_are_known _clip_by_norm _clip_gradients _filter_empty_gradients
            _get_current_learning_rate _get_variable_index _use_weight_decay
            _overwrite_variables_directly_with_gradients _update_model_variables_moving_average""",
        "micro-batch": "apply apply_gradients",
        "first": """_track_variable add_optimizer_variables add_variable build
            add_variable_from_reference""",
        "refused": "",
        # Keras's own accumulation never runs. On TensorFlow gradients are summed before.
        "others": """_adamw_update_step _all_reduce_sum_gradients _check_super_called
            _backend_increment_gradient_accumulators _backend_reset_gradient_accumulators
            _muon_update_step _obj_type _rms _should_use_adamw _untrack_variable _var_key
            _overwrite_model_variables_with_average_value _overwrite_variable_with_gradient
            _distributed_tf_update_step _parallel_update_step add_to_swa assign assign_add
            assign_sub exclude_from_weight_decay finalize_variable_values from_config get_config
            iterations learning_rate load_own_variables lr_adjust save_own_variables scale_loss
            set_weights stateless_apply transpose_last_axis update_step variables
            zeropower_via_newtonschulz5""",
    }
    if hasattr(optimizers.Optimizer, "_is_excluded_from_weight_decay"):  # since Keras 3.16
        WHEN["first"] += " _is_excluded_from_weight_decay"
        WHEN["others"] += " _backend_maybe_overwrite_model_variables"
    if hosts.IS_TENSORFLOW:
        WHEN["update"] += " _distributed_tf_update_step assign_add assign_sub update_step"
    else:
        WHEN["update"] += " _parallel_update_step"
WHEN = {when: names.split() for when, names in WHEN.items()}


def methods_of_keras():
    classes = [cls for cls in vars(optimizers).values() if isinstance(cls, type)]
    classes = [cls for cls in classes if issubclass(cls, optimizers.Optimizer)]
    wrappers = "LossScaleOptimizer", "MultiOptimizer"
    classes = [type(cls.__new__(cls)) for cls in classes if cls.__name__ not in wrappers]
    bases = {base for cls in classes for base in cls.__mro__ if "optimizer" in base.__module__}
    kinds = (staticmethod, classmethod, property)
    members = [item for base in bases for item in vars(base).items() if item[0][:2] != "__"]
    return {name for name, value in members if callable(value) or isinstance(value, kinds)}


def test_each_method_is_in_the_table():
    """A new method of Keras must get its place, with what it does in a window."""
    assert methods_of_keras() <= set().union(*WHEN.values())


def overriding(parent, name, calls):
    """A class made as Horovod makes its own, with one method."""

    def called(self, *args, **kwargs):
        calls.append(name)
        return getattr(super(made, self), name)(*args, **kwargs)

    def dense(self, grad, var, apply_state=None):  # Keras looks at the names of its arguments
        return called(self, grad, var, apply_state=apply_state)

    method = dense if name == "_resource_apply_dense" else called
    made = type(parent.__name__, (parent,), {name: method, "__module__": __name__})
    return made


def steps_that_call(cls, calls, steps, **arguments):
    """Return for each train step if it calls the method."""
    more = {"use_ema": True, "weight_decay": 0.5} if hosts.HAS_EMA else {}
    more.update({"clipnorm": 1.0} if hosts.IS_KERAS3 else {})
    optimizer, ws, found = cls(2**-5, **more, **arguments), variables(), []
    for _ in range(steps):
        calls.clear()
        if hosts.IS_KERAS3:
            optimizer.apply_gradients([(keras.ops.ones(w.shape, w.dtype), w) for w in ws])
        else:
            optimizer.minimize(lambda: sum(hosts.tf.reduce_sum(w * w) for w in ws), ws)
        found.append(bool(calls))
    return found


ROWS = [(when, name) for when in list(WHEN)[:-1] for name in sorted(WHEN[when])]


@pytest.mark.quick_by("tf_keras")
@quick_first("how", ["subclass", "accumulating"])
@pytest.mark.parametrize("when, name", ROWS)
def test_when_an_overridden_method_is_called(when, name, how):
    """Once per update, in each micro-batch, or it is refused by name."""
    calls, stock = [], type(hosts.stock("Adam"))

    def overriding_class():
        if how == "subclass":
            return overriding(accum.AdamAccumulate, name, calls)
        return accum.accumulating(overriding(stock, name, calls))

    whole = "apply" if hosts.IS_KERAS3 else "apply_gradients"
    if name == whole and how == "accumulating":  # the stock optimizer's whole update
        when = "update"
    if when == "refused":
        with pytest.raises(TypeError, match=f"Adam.* overrides `{name}`"):
            overriding_class()
        return
    found = steps_that_call(overriding_class(), calls, 2 * LENGTH, accum_iters=LENGTH)
    if when == "first":
        assert found[0]
    else:
        ends = [step % LENGTH == LENGTH - 1 for step in range(2 * LENGTH)]
        assert found == (ends if when == "update" else [True] * 2 * LENGTH)
    assert steps_that_call(overriding(stock, name, calls), calls, 1) == [True]
