#!/usr/bin/env python3
"""A model for images and text (Qwen3-VL), in a loop of one's own: its text decoder and head are streamed, its tower for images runs as it does.

    python images.py [--steps 6] [--tokens 200]
"""

import argparse

import streambp_bench as sb
import torch
import transformers

IMAGE, START, END, WORDS = 250, 251, 252, 256  # tokens
GRID = (1, 8, 8)  # patches of an image; four of them are a token


def tiny_model():
    """A Qwen3-VL of two layers of 64 for text and two of 32 for images, in float32."""
    torch.manual_seed(0)
    text = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True, "rope_theta": 1e4}}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4, "spatial_merge_size": 2,
              "temporal_patch_size": 2, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=END)
    return transformers.Qwen3VLForConditionalGeneration(config)


def batch_of(tokens):
    """An image of noise and a text that counts, with labels for the text."""
    image = GRID[0] * GRID[1] * GRID[2]
    ids = torch.tensor([[START, *[IMAGE] * (image // 4), END, *(i % 97 for i in range(tokens))]])
    labels = ids.masked_fill(ids >= IMAGE, -100)
    pixels = torch.randn(image, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": labels, "pixel_values": pixels, "image_grid_thw": torch.tensor([GRID]), "mm_token_type_ids": (ids == IMAGE).long()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=200, help="of text (default: %(default)s)")
    arguments = parser.parse_args()

    model = sb.patch(tiny_model().train(), chunk=64)
    optimizer, batch = torch.optim.AdamW(model.parameters(), lr=3e-3), batch_of(arguments.tokens)
    for _ in range(arguments.steps):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss: {loss.item():.4f}")


if __name__ == "__main__":
    main()
