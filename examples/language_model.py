"""A language model with padding, from the text to the last check: docs/language_model.md.

    KERAS_BACKEND=torch python examples/language_model.py

It takes two to three minutes on a CPU. Step 7 needs PyTorch; the rest runs on each backend.
"""

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics  # Python's documentation, which comes with Python

import keras
import numpy as np
from keras import layers

from keras_accum import AdamAccumulate, compare_with_big_batch

SENTENCES, VALIDATION, EPOCHS = 1003, 256, 3
BATCH, MICRO_BATCH = 64, 8  # the batch that you want, and the one that fits in memory
ACCUM_ITERS = BATCH // MICRO_BATCH
KILLED_IN = 2, 37  # epoch and micro-batch, for step 6

# -- 1. The data -----------------------------------------------------------------------------------

WORDS, LENGTH = 400, 40
PADDING, RARE = 0, 1  # in place of words
IGNORED = -100  # in place of labels

text = " ".join(topics.values()).lower()
sentences = {tuple(re.findall(r"[a-z]+|[.,:()]", s)) for s in re.split(r"(?<=[.:])\s+", text)}
sentences = sorted(words for words in sentences if 3 <= len(words) <= LENGTH)
counts = Counter(word for words in sentences for word in words)
number_of = {word: i for i, (word, _) in enumerate(counts.most_common(WORDS - 2), 2)}

x = np.full((len(sentences), LENGTH - 1), PADDING)
y = np.full((len(sentences), LENGTH - 1), IGNORED)
for i, words in enumerate(sentences):
    numbers = [number_of.get(word, RARE) for word in words]
    x[i, : len(words) - 1] = numbers[:-1]
    y[i, : len(words) - 1] = numbers[1:]  # the label of a word is the next word
y[y == RARE] = IGNORED  # the model reads rare words, and doesn't learn to write them

order = np.random.default_rng(0).permutation(len(x))
validation = x[order[:VALIDATION]], y[order[:VALIDATION]]
x, y = x[order[VALIDATION:][:SENTENCES]], y[order[VALIDATION:][:SENTENCES]]


def describe_data():
    labels = [np.sum(y[i : i + MICRO_BATCH] != IGNORED) for i in range(0, len(x), MICRO_BATCH)]
    print(f"{len(x)} sentences in {len(labels)} micro-batches")
    print(f"{np.mean(x == PADDING):.0%} padding")
    print(f"{min(labels)} to {max(labels)} labels in a micro-batch")


# -- 2. The model ----------------------------------------------------------------------------------


def make_model():
    keras.utils.set_random_seed(0)  # the same initial weights each time
    inputs = keras.Input((LENGTH - 1,), dtype="int32")
    words = layers.Embedding(WORDS, 64, mask_zero=True)(inputs)  # 0 is PADDING
    places = keras.ops.cumsum(keras.ops.ones_like(inputs), axis=1) - 1
    hidden = layers.Add()([words, layers.Embedding(LENGTH, 64)(places)])
    attention = layers.MultiHeadAttention(4, 16, use_bias=False)
    hidden = layers.Add()([hidden, attention(hidden, hidden, use_causal_mask=True)])
    hidden = layers.LayerNormalization()(hidden)
    dense = layers.Dense(64)(layers.Dense(256, activation="gelu")(hidden))
    hidden = layers.LayerNormalization()(layers.Add()([hidden, dense]))
    return keras.Model(inputs, layers.Dense(WORDS, dtype="float32")(hidden))


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED)

# -- 3. The optimizer ------------------------------------------------------------------------------

UPDATES = EPOCHS * math.ceil(len(x) / BATCH)
WARM_UP = 5
schedule = keras.optimizers.schedules.CosineDecay(
    1e-4, decay_steps=UPDATES - WARM_UP, warmup_target=3e-3, warmup_steps=WARM_UP
)


def make_optimizer():
    return AdamAccumulate(schedule, global_clipnorm=1.0, accum_iters=ACCUM_ITERS)


def describe_schedule():
    for update in (0, WARM_UP, UPDATES):
        print(f"after {update} updates: learning rate {float(schedule(update)):.1e}")


# -- 4. One window ---------------------------------------------------------------------------------


def ask():
    model = make_model()
    model.compile(make_optimizer(), loss)
    print(compare_with_big_batch(model, x[:BATCH], y[:BATCH], batch_size=MICRO_BATCH))


# -- 5. Training -----------------------------------------------------------------------------------


def shuffled(epoch):
    order = np.random.default_rng(epoch).permutation(len(x))
    return x[order], y[order]


def train(file, *callbacks):
    """Train to the end, from the file if there is one."""
    keras.config.set_dtype_policy("mixed_bfloat16")  # before the model is made
    if file.exists():
        model = keras.models.load_model(file)
    else:
        model = make_model()
        model.compile(make_optimizer(), loss)
    optimizer = model.optimizer
    first, seen = optimizer.position_in_data(SENTENCES, MICRO_BATCH)
    if seen == SENTENCES:  # saved after the epoch's last micro-batch, before its window ended
        optimizer.apply_partial_window()
        first, seen = first + 1, 0
    if seen:
        print(f"from epoch {first + 1}, sentence {seen + 1}")
    for epoch in range(first, EPOCHS):
        x, y = shuffled(epoch)
        history = model.fit(
            x[seen:],
            y[seen:],
            batch_size=MICRO_BATCH,
            shuffle=False,  # `shuffled` does it, in an order that the number of the epoch tells
            initial_epoch=epoch,
            epochs=epoch + 1,
            validation_data=validation,
            validation_batch_size=BATCH,
            callbacks=[Save(file), *callbacks],
            verbose=0,
        )
        seen = 0
        (val_loss,) = history.history["val_loss"]
        print(f"epoch {epoch + 1}: {optimizer.completed_updates} updates, val_loss {val_loss:.4f}")
    model.save(file)
    return model


# -- 6. A kill -------------------------------------------------------------------------------------


class Save(keras.callbacks.Callback):
    """Save after every ten micro-batches."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def on_train_batch_end(self, batch, logs=None):
        if batch % 10 == 9:
            new = self.file.with_name("new.keras")
            self.model.save(new)
            os.replace(new, self.file)  # so a kill never leaves half a file


class Kill(keras.callbacks.Callback):
    """End this process as `kill -9` does."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch + 1, batch + 1) == KILLED_IN:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def kill_and_continue(file, uninterrupted):
    command = [sys.executable, __file__, str(file)]
    killed = subprocess.run([*command, "--kill"])
    print(f"killed: exit status {killed.returncode}")
    subprocess.run(command, check=True)
    continued = keras.models.load_model(file)
    print(f"largest difference from the run without a kill: {distance(continued, uninterrupted)}")


def distance(model, other):
    pairs = zip(model.get_weights(), other.get_weights())
    return max(abs(weight - of_other).max() for weight, of_other in pairs)


# -- 7. A loop on PyTorch --------------------------------------------------------------------------


def train_in_a_loop():
    import torch

    model, optimizer = make_model(), make_optimizer()
    for epoch in range(EPOCHS):
        data = torch.utils.data.TensorDataset(*map(torch.from_numpy, shuffled(epoch)))
        for x_micro, y_micro in torch.utils.data.DataLoader(data, batch_size=MICRO_BATCH):
            logits = model(x_micro, training=True)
            y_micro = y_micro.to(logits.device)
            loss = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), y_micro, ignore_index=IGNORED
            )
            model.zero_grad()  # on every micro-batch: the optimizer has the sum
            loss.backward()
            gradients = [v.value.grad for v in model.trainable_variables]
            optimizer.weigh((y_micro != IGNORED).sum())  # what the loss was divided by
            with torch.no_grad():
                optimizer.apply(gradients, model.trainable_variables)
        optimizer.apply_partial_window()  # the micro-batches that are left
    print(f"{optimizer.completed_updates} updates in the loop")
    return model


# -- 8. The check ----------------------------------------------------------------------------------


def check(in_a_loop):
    start, stock, ours = make_model(), make_model(), make_model()
    stock.compile(keras.optimizers.Adam(schedule, global_clipnorm=1.0), loss)
    ours.compile(make_optimizer(), loss)
    for epoch in range(EPOCHS):
        x, y = shuffled(epoch)
        stock.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        ours.fit(x, y, batch_size=MICRO_BATCH, shuffle=False, verbose=0)
    print(f"the weights moved by up to {distance(stock, start):.1e}")
    print(f"fit: {distance(ours, stock):.1e} from Adam with batches of {BATCH}")
    if in_a_loop is not None:
        print(f"loop: {distance(in_a_loop, stock):.1e} from Adam with batches of {BATCH}")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # the processes of step 6 print in turns
    if sys.argv[1:]:  # a process of step 6
        train(Path(sys.argv[1]), *[Kill()] * ("--kill" in sys.argv))
    else:
        describe_data()
        describe_schedule()
        ask()
        with tempfile.TemporaryDirectory() as folder:
            uninterrupted = train(Path(folder, "uninterrupted.keras"))
            kill_and_continue(Path(folder, "train.keras"), uninterrupted)
        keras.config.set_dtype_policy("float32")
        check(train_in_a_loop() if keras.backend.backend() == "torch" else None)
