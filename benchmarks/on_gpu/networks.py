"""The networks that `fit` trains on a GPU, or small ones of the same kinds, to try the program."""

import functools

from shared import networks

from .tables import NETWORKS

MICRO_BATCH, WINDOW = 16, 8
MLP, TRANSFORMER, EMBEDDING, CONVOLUTIONS = NETWORKS
_MLP, _EMBEDDING = networks.mlp, networks.embedding

LARGE = {
    MLP: functools.partial(_MLP, width=4096, inputs=1024, layers=4),
    TRANSFORMER: functools.partial(networks.transformer, width=512, blocks=6, vocabulary=8000),
    EMBEDDING: functools.partial(_EMBEDDING, rows=200_000, width=128),
    CONVOLUTIONS: networks.deep_conv_net,
}
SMALL = {
    MLP: functools.partial(_MLP, width=16, layers=1),
    TRANSFORMER: functools.partial(
        networks.transformer, width=8, blocks=1, vocabulary=50, length=4
    ),
    EMBEDDING: functools.partial(_EMBEDDING, rows=50, width=8),
    CONVOLUTIONS: functools.partial(networks.deep_conv_net, size=8, filters=(4,)),
}


def of(options):
    return SMALL if options.small else LARGE
