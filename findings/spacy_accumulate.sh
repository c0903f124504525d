#!/usr/bin/env bash
# Expectation: accumulate_gradient = 4 in the [training] part of spaCy's config makes an update from 4
# batches, as gradient accumulation does elsewhere.
# What happens: it divides each batch into 4 pieces and, if a rest remains, a fifth. The number of updates
# and the update itself stay the same; more pieces than samples leave the batch whole.
# Why it matters: it saves memory, and the batch doesn't grow. For that, also raise the batcher's size.
# Source: spacy.training.loop.subdivide_batch; https://spacy.io/api/data-formats#config-training
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder"
"$folder/bin/pip" install -q --no-compile spacy==3.8.18 thinc==8.3.14 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import sys
import numpy
import spacy
from spacy.training import Example
from spacy.training.loop import train_while_improving
from thinc.api import SGD


def run(pieces):
    """Trains one batch of 10 texts as `spacy train` does; sizes of the passes, new weights."""
    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("textcat")
    batch = []
    for i in range(10):
        labels = {"A": float(i % 2), "B": float(1 - i % 2)}
        batch.append(Example.from_dict(nlp.make_doc(f"text {i}" + " good" * i), {"cats": labels}))
    nlp.initialize(lambda: batch)
    sizes, update = [], pipe.update

    def counted(examples, **options):
        sizes.append(len(examples))
        return update(examples, **options)

    pipe.update = counted
    settings = {"dropout": 0.0, "eval_frequency": 100, "patience": 0, "max_steps": 0}
    lists = {"exclude": [], "annotating_components": [], "before_update": None}
    optimizer = SGD(0.01, L2=0.0, grad_clip=0.0)
    steps = train_while_improving(
        nlp, optimizer, [(0, batch)], lambda: (0.0, {}), accumulate_gradient=pieces,
        **settings, **lists
    )
    updates = len(list(steps))
    named = [(layer, name) for layer in pipe.model.walk() for name in layer.param_names]
    return sizes, updates, numpy.concatenate([layer.get_param(n).ravel() for layer, n in named])


print("spacy", spacy.__version__)
found, whole = True, run(1)
for pieces, expected in (1, [10]), (3, [3, 3, 3, 1]), (4, [2, 2, 2, 2, 2]), (20, [10]):
    sizes, updates, weights = run(pieces)
    difference = float(abs(weights - whole[2]).max())
    print(f"accumulate_gradient={pieces}: {sizes}, {updates} update, differs by {difference:.0e}")
    found = found and sizes == expected and updates == 1 and difference < 1e-6
sys.exit(0 if found else "The behavior has changed.")
PYTHON
