"""Train a policy for CartPole with Stable-Baselines3 and export it: ``python examples/rl/train.py``.

A policy is served without what only training needs: sampling, the value of a state, the optimiser. What is left
is a torch module, which ``torch.export`` writes for any number of observations at a time.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

MODEL = Path(__file__).parent / "model" / "policy.pt2"
OBSERVATION = 4
"""Position and speed of the cart, angle and speed of the pole."""


class Policy(nn.Module):
    """What a policy decides: for each observation the best action, and how probable each is."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self._features = policy.pi_features_extractor
        self._network = policy.mlp_extractor.policy_net
        self._head = policy.action_net

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return ``action`` [n] and ``probability`` [n, 2] for observations [n, 4]."""
        logits = self._head(self._network(self._features(observation)))
        return {"action": logits.argmax(1), "probability": logits.softmax(1)}


def train(steps: int) -> PPO:
    """Return a policy after so many steps; four thousand hold the pole upright for a while."""
    # So small a network is quickest alone on a core.
    torch.set_num_threads(1)
    return PPO("MlpPolicy", "CartPole-v1", n_steps=256, seed=20, device="cpu").learn(steps)


def export(policy: ActorCriticPolicy, path: Path) -> None:
    """Write the policy as a program that takes batches of any size."""
    example = (torch.zeros(2, OBSERVATION),)
    rows = {"observation": {0: torch.export.Dim("rows")}}
    program = torch.export.export(Policy(policy).eval(), example, dynamic_shapes=rows)
    path.parent.mkdir(exist_ok=True)
    torch.export.save(program, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4096, help="to train for")
    parser.add_argument("--model", type=Path, default=MODEL, help="the file to write")
    options = parser.parse_args(arguments)
    export(train(options.steps).policy, options.model)
    print(f"written: {options.model}")


if __name__ == "__main__":
    main()
