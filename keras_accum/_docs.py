"""The public docstrings, put together from what is common and what is not."""


def docstring(cls, host):
    return cls.__doc__
