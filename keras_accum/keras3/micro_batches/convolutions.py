"""Convolutions in a loop on CPUs, in the order of dimensions that XLA has a fast kernel for.

XLA brings the convolutions of a program into this order, but not those in a loop. A kernel's
gradient has another order, and would take hundreds of times as long there.
"""

import functools

import jax
from jax.extend import core

_CONVOLVE = core.primitives.conv_general_dilated_p


def in_fast_order(function):
    """Return the function with its convolutions transposed, if JAX has only CPUs."""
    if jax.default_backend() != "cpu":
        return function

    def call(*arguments):
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        leaves = core.jaxpr_as_fun(_replace(program))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return call


def _replace(value):
    """Return a program with other convolutions, or a parameter of an operation as it is."""
    if isinstance(value, core.ClosedJaxpr):
        return value.replace(jaxpr=_replace(value.jaxpr))
    if isinstance(value, core.Jaxpr):
        return value.replace(eqns=list(map(_replace_operation, value.eqns)))
    if type(value) is tuple:  # the branches of a conditional
        return tuple(map(_replace, value))
    return value


def _replace_operation(operation):
    if operation.primitive is not _CONVOLVE:
        parameters = {name: _replace(value) for name, value in operation.params.items()}
        return operation.replace(params=parameters)
    function = jax.jit(functools.partial(_convolve, **operation.params))
    call = jax.make_jaxpr(function)(*(variable.aval for variable in operation.invars)).eqns[0]
    return operation.replace(primitive=call.primitive, params=call.params)


def _convolve(inputs, kernel, dimension_numbers, **parameters):
    """Convolve with the features last, and return the result in the given order."""
    (sample, feature, *space), (of_output, of_input, *window), of_result = dimension_numbers
    last = inputs.ndim - 1
    order = 0, last, *range(1, last)  # of samples, features and space
    parameters["dimension_numbers"] = jax.lax.ConvDimensionNumbers(
        order, (last, last - 1, *range(last - 1)), order
    )
    result = _CONVOLVE.bind(
        jax.lax.transpose(inputs, (sample, *space, feature)),
        jax.lax.transpose(kernel, (*window, of_input, of_output)),
        **parameters,
    )
    places = dict(zip(of_result, order))
    return jax.lax.transpose(result, [places[i] for i in range(last + 1)])
