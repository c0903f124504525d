"""Write the API reference from the docstrings: `python docs/write_api.py`, on Keras 3.

`tests/test_api.py` fails where docs/api.md isn't what this makes.
"""

import inspect
from pathlib import Path

PAGE = Path(__file__).resolve().with_name("api.md")
HEAD = """# API reference

Made from the docstrings by `python docs/write_api.py`, as they read on Keras 3. The classes of
`keras_accum.tf_keras` and `keras_accum.keras2` have the same names and meaning; their docstrings
say what is other there (`help(AdamAccumulate)`). Each class has the methods and attributes of its
stock optimizer besides what is here.
"""
MEMBERS = (
    *("accum_iters", "window_position", "completed_updates", "lr", "apply_partial_window"),
    "weigh",
    *("get_state", "set_state", "from_optimizer", "to_stock", "with_accum_iters"),
)


def text():
    import keras_accum

    parts = [HEAD]
    for name in keras_accum.__all__:
        parts.append(_entry(f"## {name}", getattr(keras_accum, name)))
    parts.append("## What all optimizers have\n")
    optimizer = keras_accum.AdamAccumulate
    for name in MEMBERS:
        parts.append(_entry(f"### {name}", inspect.getattr_static(optimizer, name)))
    return "\n".join(parts)


def _entry(heading, documented):
    documented = getattr(documented, "__func__", documented)
    return f"{heading}\n\n```text\n{inspect.getdoc(documented)}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
