"""The tiny models some of whose layers run a shared transformer block before their state space: Zamba 2.

Heads share out twice the hidden size. Rows longer than a block of the recurrence, and shorter
than its convolution's kernel, as in the other families with a state space.
"""

from goldens.models.family_models import ALL, ONE, SMALL
from goldens.models.recurrent_models import LONG, SHORT
from goldens.specs import PROMPTS, Model, rope

SHARED = {
    **{key: value for key, value in SMALL.items() if key != "rope_parameters"},
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "mamba_d_state": 7,
    "n_mamba_heads": 4,
    "chunk_size": 16,  # transformers' blocks: several in a row
    "adapter_rank": 3,
}


def in_transformers_4(types):
    return {"layers_block_type": ["mamba" if one == "linear_attention" else one for one in types]}


TWO_BLOCKS = ["linear_attention", "hybrid", "hybrid", "hybrid"]
FIRST = ["hybrid", "linear_attention", "hybrid"]

ZAMBA_MODELS = {
    # Two blocks, the first of which two layers run; all adapters, rotation.
    "zamba2": Model(
        "zamba2",
        seed=705,
        settings={
            **SHARED,
            "num_hidden_layers": 4,
            "layers_block_type": TWO_BLOCKS,
            "num_mem_blocks": 2,
            "use_mem_rope": True,
            "use_shared_attention_adapter": True,
            "rms_norm_eps": 1e-3,  # unlike that of the norm of what is gated
            "rope_parameters": rope(1000.0),
            "tie_word_embeddings": True,
        },
        legacy=in_transformers_4(TWO_BLOCKS),
        batches={**ALL, **LONG},
    ),
    # One block for all, fewer key heads, two groups of B and C, steps of time with a lower end that acts, neither rotation
    # nor adapters in attention; a padding token.
    "zamba2-plain": Model(
        "zamba2",
        seed=702,
        settings={
            **SHARED,
            "num_hidden_layers": 3,
            "layers_block_type": FIRST,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "mamba_d_conv": 2,
            "n_mamba_heads": 2,
            "mamba_ngroups": 2,
            "time_step_min": 0.4,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "rope_parameters": rope(1000.0),
        },
        legacy=in_transformers_4(FIRST),
        batches={**ONE, **SHORT},
    ),
    # Biases of MLPs and of the state spaces' maps, which padding on the left would show.
    "zamba2-bias": Model(
        "zamba2",
        seed=706,
        settings={
            **SHARED,
            "num_hidden_layers": 2,
            "layers_block_type": ["hybrid", "hybrid"],
            "add_bias_linear": True,
            "tie_word_embeddings": True,
            "rope_parameters": rope(1000.0),
        },
        legacy=None,
        batches=PROMPTS,
    ),
}
