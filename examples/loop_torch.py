"""A loop on PyTorch."""

import keras
import numpy as np
import torch

from keras_accum import AdamAccumulate

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x, y = (random.uniform(0.5, 1, (107, n)).astype("float32") for n in (8, 2))
data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
optimizer = AdamAccumulate(1e-3, accum_iters=5)

for epoch in range(3):
    for x_micro, y_micro in torch.utils.data.DataLoader(data, batch_size=10):
        y_pred = model(x_micro, training=True)
        loss = torch.mean((y_pred - y_micro.to(y_pred.device)) ** 2)
        model.zero_grad()  # on every micro-batch: the optimizer has the sum
        loss.backward()
        gradients = [v.value.grad for v in model.trainable_variables]
        optimizer.weigh(len(x_micro))  # what the loss divides by
        with torch.no_grad():
            optimizer.apply(gradients, model.trainable_variables)
    optimizer.apply_partial_window()  # with the micro-batches that are left
    print(f"epoch {epoch}: {optimizer.completed_updates} updates, loss {loss.item():.4f}")
