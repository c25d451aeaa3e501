"""The recurrent network: LSTM or GRU over a sequence, then a dense layer on the state after its last element.

Parts: embedding (tokens only), recurrent (a hidden unit with its gates is a neuron), output.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpeer.networks.rows import as_sequences


class Recurrent(nn.Module):
    """The recurrent network.

    features    numbers at each place of the sequence; None: tokens 0..vocabulary-1
    vocabulary  number of tokens, if inputs are tokens
    outputs     number of logits
    hidden      hidden units of each layer
    layers      recurrent layers
    embedding   numbers of a token's embedding, if inputs are tokens
    padding     token that fills up short texts at their end; None: there is none
    cell        "lstm" or "gru"
    """

    def __init__(
        self,
        features: int | None,
        vocabulary: int,
        outputs: int,
        *,
        hidden: int,
        layers: int,
        embedding: int,
        padding: int | None = None,
        cell: str,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding) if features is None else nn.Identity()
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.recurrent = kind(embedding if features is None else features, hidden, num_layers=layers, batch_first=True)
        self.output = nn.Linear(hidden, outputs)
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """Map sequences, (B, T) int64, (B, T, F) float or images (B, C, H, W) as rows, to logits, (B, outputs)."""
        states, _ = self.recurrent(self.embedding(as_sequences(x, tokens=isinstance(self.embedding, nn.Embedding))))
        logits: Tensor = self.output(
            states[:, -1] if self.padding is None else _of_last_token(states, x != self.padding)
        )
        return logits


def _of_last_token(states_BTH: Tensor, there_BT: Tensor) -> Tensor:
    """Return the state after the last place that is there, (B, H); of an empty text, after its first place.

    After a hundred places of padding a state has forgotten the text.
    """
    places_T = torch.arange(there_BT.shape[1], device=there_BT.device)
    last_B = (there_BT * places_T).argmax(1)
    return states_BTH.gather(1, last_B[:, None, None].expand(-1, 1, states_BTH.shape[2])).squeeze(1)
