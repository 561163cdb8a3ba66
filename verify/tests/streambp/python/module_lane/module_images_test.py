#!/usr/bin/env python3
"""sb.patch(model, lane="module") on models for text and images: the text decoder is streamed, with images in the batch, and all gradients, the
vision tower's among them, are the model's own, in float64. Edges of chunks never cut an image whose tokens see one another in both directions."""

import unittest
import warnings

import streambp_bench as sb
import torch
import transformers
from any_model import difference
from module_lane_test import everything_in_float64, lanes, streamed
from patching import gradients, patched, relative, step
from python_case import Case, in_float64
from streambp_bench._module_lane import node

IMAGE, START, END, VIDEO = 60, 58, 59, 57  # tokens
TEXT = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
QWEN_TOWER = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
              "out_hidden_size": 32}
QWEN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
QWEN_TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 5}
LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
          "linear_value_head_dim": 8}
PIXELS = {"pixel_values": (2, 3, 16, 16)}
GRID = {"pixel_values": (48, 96), "image_grid_thw": torch.tensor([[1, 4, 6]] * 2)}
PATCHES = torch.tensor([[[x, y] for y in range(4) for x in range(6)]] * 2)
# family: (class, settings of the model, of its text, of its vision tower, tokens of an image, what is given for two images: tensors or shapes)
FAMILIES = {
    "Gemma 3": ("Gemma3", {"mm_tokens_per_image": 4, "image_token_index": IMAGE}, WINDOWS, TOWER | {"image_size": 16, "patch_size": 4}, 4, PIXELS),
    "Gemma 4": ("Gemma4", {"image_token_id": IMAGE, "video_token_id": VIDEO, "audio_token_id": 56, "audio_config": None},
                WINDOWS | {"use_bidirectional_attention": "vision", "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8,
                           "global_head_dim": 16, "num_experts": None},
                TOWER | {"head_dim": 8, "num_key_value_heads": 2, "patch_size": 4, "pooling_kernel_size": 2, "position_embedding_size": 32}, 6,
                {"pixel_values": (2, 24, 48), "image_position_ids": PATCHES}),
    "Qwen3-VL": ("Qwen3VL", QWEN_TOKENS, QWEN_ROPE, QWEN_TOWER | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}, 6, GRID),
    "Qwen2.5-VL": ("Qwen2_5_VL", QWEN_TOKENS, QWEN_ROPE, QWEN_TOWER | {"window_size": 16, "fullatt_block_indexes": [1]}, 6, GRID),
    "Qwen3.5": ("Qwen3_5", QWEN_TOKENS, QWEN_ROPE | LINEAR, QWEN_TOWER | {"num_position_embeddings": 16}, 6, GRID),
    "Mistral 3": ("Mistral3", {"image_token_index": IMAGE, "spatial_merge_size": 2}, {"model_type": "mistral", "sliding_window": None},
                  TOWER | {"model_type": "pixtral", "image_size": 16, "patch_size": 4, "head_dim": 8}, 4, PIXELS | {"image_sizes": torch.tensor([[16, 16]] * 2)}),
    "LLaVA": ("Llava", {"image_token_index": IMAGE}, {"model_type": "llama"}, TOWER | {"model_type": "clip_vision_model", "image_size": 16, "patch_size": 8}, 4, PIXELS),
}
BIDIRECTIONAL = ("Gemma 3", "Gemma 4")
warnings.simplefilter("ignore")


def model_of(family, attention="eager", **more):
    """A small model with weights that matter, in float64."""
    name, settings, text, tower, *_ = FAMILIES[family]
    torch.manual_seed(0)
    with in_float64():
        config = getattr(transformers, f"{name}Config")(text_config=TEXT | text | more, vision_config=dict(tower), **settings)
        config._attn_implementation = attention
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model.train()


def batch_of(family):
    """Two rows with an image each, at different positions; the second row is shorter, padded on its right."""
    count, given = FAMILIES[family][4:]
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 56, (2, 25), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0
    for row, begin in enumerate((5, 9)):
        ids[row, begin - 1], ids[row, begin + count] = START, END
        ids[row, begin:begin + count] = IMAGE
    labels = ids.masked_fill((mask == 0) | (ids == IMAGE), -100)
    kinds = (ids == IMAGE).long()
    pixels = {name: torch.randn(value, generator=generator, dtype=torch.float64) if isinstance(value, tuple) else value for name, value in given.items()}
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels, **pixels,
            **({"token_type_ids": kinds} if family == "Gemma 3" else {} if family in ("Mistral 3", "LLaVA") else {"mm_token_type_ids": kinds})}


class Images(Case):
    def compare(self, family, chunks=(1, 3, 7, 40), attention="eager", **more):
        model, batch = model_of(family, attention, **more), batch_of(family)
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False)
            self.assertTrue(any("vis" in name for name in theirs))
            self.assertEqual(lanes(model), {"module"}, f"{family}\n{sb.prove(model)}")
            for chunk in chunks:
                with streamed(model, chunk, prove=False):  # as lanes() has
                    ours_loss, ours = step(model, batch)
                error = max(relative(ours_loss, loss), difference(ours, theirs))
                self.assertTrue(error <= 1e-9, f"{family}, chunk {chunk}, {attention}: {error:.1e}")
                type(self).reached = max(self.reached, error)

    def test_gradients(self):
        for family in FAMILIES:
            self.compare(family, self.turns((1, 3, 7, 40), 2))

    def test_sdpa(self):
        for family in FAMILIES:
            self.compare(family, (3,), "sdpa")

    def test_images_without_labels_beside_the_engine(self):
        """Where the engine knows the text model, and a trainer makes its loss of logits: the whole model is left to its own code, with its images."""
        for family in ("Gemma 3", "Qwen3.5", "Mistral 3"):
            model, batch = model_of(family), batch_of(family)
            del batch["labels"]

            def run(model=model, batch=batch):
                model.zero_grad()
                output = model(**batch, use_cache=False, logits_to_keep=7).logits[0].logsumexp(-1).sum()
                output.backward()
                return output.item(), gradients(model)

            with everything_in_float64():
                loss, theirs = run()
                with patched(model, lane="engine"), self.assertRaisesRegex(sb.InputError, "pixel_values"):
                    run()
                with patched(model, lane="auto", chunk=7, prove=False):
                    ours_loss, ours = run()
            self.assertTrue(any("vis" in name for name in theirs))
            self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= 1e-9, family)

    def test_edges_of_chunks_leave_images_whole(self):
        for family in BIDIRECTIONAL:
            model, batch, seen = model_of(family), batch_of(family), set()
            own = node.Arguments.chunks

            def chunks(arguments, size, own=own, seen=seen):
                found = own(arguments, size)
                seen.add(tuple(found))
                return found

            node.Arguments.chunks = chunks
            try:
                with everything_in_float64(), streamed(model, 3, prove=False):
                    step(model, batch)
            finally:
                node.Arguments.chunks = own
            for found in seen:
                self.assertEqual([begin for begin, _ in found], [0, *[end for _, end in found[:-1]]])
                self.assertEqual(found[-1][1], 25)
            count = FAMILIES[family][4]
            cut = [any(5 < end < 5 + count or 9 < end < 9 + count for _, end in found) for found in seen]
            self.assertEqual(sorted(cut), [False] if family == "Gemma 3" else [False, True], seen)  # Gemma 4's global layers are causal

    def test_edges(self):
        mask = torch.ones(10, 10, dtype=torch.bool).tril()
        self.assertEqual(node.Arguments({"attention_mask": mask[None, None]}, 10).chunks(4), [(0, 4), (4, 8), (8, 10)])
        mask[2:7, 2:7] = True
        for given in (mask[None, None], torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None]):
            self.assertEqual(node.Arguments({"attention_mask": given}, 10).chunks(4), [(0, 2), (2, 7), (7, 10)])
        hidden = torch.ones(1, 1, 10, 10, dtype=torch.bool).triu(1)  # some code's masks say what is hidden
        self.assertEqual(node.Arguments({"attention_mask": hidden}, 10).chunks(6), [(0, 6), (6, 10)])
        self.assertEqual(node.Arguments({"attention_mask": torch.ones(1, 1, 10, 10, dtype=torch.bool)}, 10).chunks(4), [(0, 10)])
        self.assertEqual(node.Arguments({}, 10).chunks(6), [(0, 6), (6, 10)])
        self.assertEqual(node.Arguments({}, 7).chunks(1), [(0, 2), (2, 4), (4, 7)])
        self.assertEqual(node.Arguments({}, 7).chunks(6), [(0, 7)])
        self.assertEqual(node.Arguments({}, 1).chunks(1), [(0, 1)])


if __name__ == "__main__":
    unittest.main()
