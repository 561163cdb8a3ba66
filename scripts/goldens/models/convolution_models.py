"""The tiny models most of whose layers are short convolutions between two gates: LFM2, its mixture and LFM3. Some rows are shorter than a kernel."""

from goldens.models.family_models import ALL, ONE, OTHER_EPS, short_yarn
from goldens.models.recurrent_models import SHORT
from goldens.specs import PROMPTS, Model, rope

CONVOLUTION_MODELS = {
    # Layer 1 attends; the width of MLPs is worked out: 14 of 13.
    "lfm2": Model(
        "lfm2",
        seed=510,
        settings={
            **OTHER_EPS,
            "norm_eps": 1e-3,
            "intermediate_size": 20,
            "num_hidden_layers": 3,
            "block_multiple_of": 7,
            "layer_types": ["conv", "full_attention", "conv"],
            "tie_word_embeddings": True,
        },
        legacy={"full_attn_idxs": [1]},
        batches={**ALL, **SHORT},
    ),
    # Biases of the convolution and of both maps around it, which padding on the left would show.
    "lfm2-bias": Model(
        "lfm2",
        seed=518,
        settings={
            **OTHER_EPS,
            "norm_eps": 1e-3,
            "intermediate_size": 15,
            "block_auto_adjust_ff_dim": False,
            "conv_bias": True,
            "layer_types": ["conv", "full_attention"],
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches={**PROMPTS, **SHORT},
    ),
    # Layer 0 is a dense convolution; layer 2 attends, and both of its kind have experts.
    "lfm2-moe": Model(
        "lfm2_moe",
        seed=512,
        settings={
            **OTHER_EPS,
            "norm_eps": 1e-3,
            "intermediate_size": 13,
            "moe_intermediate_size": 5,
            "num_hidden_layers": 3,
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.7,
            "layer_types": ["conv", "conv", "full_attention"],
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches={**ALL, **SHORT},
    ),
    # Experts everywhere, chosen by scores alone, whose weights are no shares.
    "lfm2-moe-scores": Model(
        "lfm2_moe",
        seed=513,
        settings={
            **OTHER_EPS,
            "norm_eps": 1e-5,
            "intermediate_size": 13,
            "moe_intermediate_size": 5,
            "num_hidden_layers": 2,
            "num_dense_layers": 0,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "conv_L_cache": 2,
            "layer_types": ["full_attention", "conv"],
            "tie_word_embeddings": False,
        },
        legacy=None,
        batches=ONE,
    ),
    # A kernel of 7 beside windows of 6, a rotation of each kind, half of which turns in layers that see all tokens.
    "lfm3": Model(
        "lfm3",
        seed=514,
        settings={
            **OTHER_EPS,
            "norm_eps": 1e-3,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "layer_types": ["conv", "sliding_attention", "conv", "full_attention"],
            "sliding_window": 6,
            "rope_parameters": {
                "full_attention": rope(500.0, "proportional", partial_rotary_factor=0.5),
                "sliding_attention": rope(100.0),
            },
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches={**ALL, **SHORT},
    ),
    # A scaling of each kind of layer, whose original contexts end within a row.
    "lfm3-scaled": Model(
        "lfm3",
        seed=517,
        settings={
            **{key: value for key, value in OTHER_EPS.items() if key != "rope_parameters"},
            "norm_eps": 1e-4,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "layer_types": ["full_attention", "conv", "sliding_attention"],
            "sliding_window": 9,
            "rope_parameters": {
                "full_attention": short_yarn(300.0),
                "sliding_attention": rope(100.0, "llama3", factor=4.0, original_max_position_embeddings=8, low_freq_factor=1.0, high_freq_factor=4.0),
            },
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches=ONE,
    ),
    # The class's own kinds of layers and rotations, without gates and norms of outputs.
    "lfm3-plain": Model(
        "lfm3",
        seed=516,
        settings={
            **{key: value for key, value in OTHER_EPS.items() if key != "rope_parameters"},
            "norm_eps": 1e-5,
            "num_hidden_layers": 5,
            "head_dim": 4,
            "conv_L_cache": 3,
            "sliding_window": 4,
            "attention_bias": True,
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "tie_word_embeddings": False,
        },
        legacy=None,
        batches={**ONE, **SHORT},
    ),
}
