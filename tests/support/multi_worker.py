"""One of two workers: `python multi_worker.py RESULT GATES`, with TF_CONFIG in the environment.

GATES is a JSON list of arguments. The worker trains by a `strategy.run` loop, once with each of
them, and writes the weights to files that begin with RESULT. See test_distribution.py.
"""

import json
import os
import sys

# The strategy comes before all other uses of TensorFlow: it must start the server of this process.
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import hosts  # noqa: E402
import numpy as np  # noqa: E402
from replicas import in_strategy  # noqa: E402

hosts.set_floatx(hosts.FLOATX)
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
for i, gate in enumerate(json.loads(sys.argv[2])):
    values = in_strategy(strategy, {"clipnorm": 0.3}, **gate)
    np.savez(f"{sys.argv[1]}-{worker}-{i}.npz", **values)
