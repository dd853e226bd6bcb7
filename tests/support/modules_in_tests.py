"""Torch modules that tests share."""

import torch


class Net(torch.nn.Module):
    """A network with a state: its last logits."""

    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Linear(4, 2)

    def forward(self, observations, state):
        state = observations.new_zeros(len(observations), 2) if state is None else state
        logits = self.logits(observations) + 0.1 * state
        return logits.argmax(-1), {"logits": logits, "state": logits}
