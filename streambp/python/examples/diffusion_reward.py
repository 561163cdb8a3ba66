#!/usr/bin/env python3
"""A small diffusion transformer learns what a differentiable reward likes: LoRA is trained through all denoising steps, in the memory of one.

    diffusion_reward.py [--steps 8] [--denoising 20] [--every 1]

AlignProp's idea (arXiv 2310.03739). Images are of random noise and the transformer's weights are random: what is shown is the training.
"""

import argparse

import peft
import streambp_bench as sb
import torch

SIDE, PATCH, WIDTH = 16, 4, 48


class Denoiser(torch.nn.Module):
    """Patches with the step's embedding through two transformer layers: the noise in them."""

    def __init__(self, steps):
        super().__init__()
        self.into, self.out = torch.nn.Linear(PATCH * PATCH, WIDTH), torch.nn.Linear(WIDTH, PATCH * PATCH)
        self.of_step = torch.nn.Embedding(steps, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, patches, step):
        return self.out(self.layers(self.into(patches) + self.of_step.weight[step]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="of the optimizer")
    parser.add_argument("--denoising", type=int, default=20, help="steps from noise to image")
    parser.add_argument("--every", type=int, default=1, help="which states are kept")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = peft.get_peft_model(Denoiser(options.denoising), peft.LoraConfig(r=4, lora_alpha=8, target_modules=["linear1", "linear2", "out"]))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=2e-2)
    target = torch.linspace(-1, 1, SIDE * SIDE).view(1, -1, PATCH * PATCH)  # the reward likes this image
    noise = torch.randn(8, (SIDE // PATCH) ** 2, PATCH * PATCH)

    def denoise(patches, index):
        return patches - model(patches, index) / options.denoising

    sb.load()
    for step in range(options.steps):
        with sb.measure() as memory:
            images = sb.chain(denoise, noise, options.denoising, every=options.every)
            loss = (images - target).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}, {memory.beyond_start / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
