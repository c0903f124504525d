"""A training with one worker and one parameter server: `python parameter_server.py RESULT`."""

import os
import sys

import hosts
import numpy as np
import tensorflow as tf
from cases import ADAM
from hosts import keras
from processes import two_free_ports
from training import EPOCHS, LENGTH, MICRO, SAMPLES, compiled, data, dense_model, weights

hosts.set_floatx(hosts.FLOATX)
jobs = dict(zip(("worker", "ps"), two_free_ports()))
spec = tf.train.ClusterSpec({job: [f"localhost:{port}"] for job, port in jobs.items()})
one_cpu = tf.compat.v1.ConfigProto(device_count={"CPU": 1})
servers = [tf.distribute.Server(spec, job, 0, "grpc", one_cpu) for job in jobs]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)

with strategy.scope():
    optimizer = hosts.ours("Adam", accum_iters=LENGTH, **ADAM.arguments)
    model = compiled(dense_model(), optimizer)
creator = keras.utils.experimental.DatasetCreator(
    lambda _: tf.data.Dataset.from_tensor_slices(data()).batch(MICRO).repeat()
)
model.fit(creator, epochs=EPOCHS, steps_per_epoch=SAMPLES // MICRO, verbose=0)
np.savez(sys.argv[1], **weights(model))
os._exit(0)  # the servers have no way to stop
