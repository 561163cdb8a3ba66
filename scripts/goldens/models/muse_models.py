"""The tiny models of the text models of Muse Spark (gated residual streams, norms of what attention gives, experts of a narrower stream) and of Muse Glimmer.

transformers has the classes with their towers alone: decoder and head without them are put together here.
"""

from goldens.models.family_models import ALL, ONE, SMALL
from goldens.models.text_model import register_text_model
from goldens.specs import BATCHES, Model, rope

register_text_model("muse_spark", "MuseSpark")
register_text_model("muse_glimmer", "MuseGlimmer")

MUSE = {
    **SMALL,
    "head_dim": 8,
    "sliding_window": 6,
    "final_logit_softcapping": 3.0,
    "output_multiplier": 0.6,
    "qk_scale_factor": 1.9,
    "post_norm_eps": 1e-2,
    "residual_gate_temperature": 0.5,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 5,
    "moe_hidden_size": 12,
    "routed_scaling_factor": 1.7,
}

GLIMMER = {key: MUSE[key] for key in (*SMALL, "head_dim", "sliding_window", "final_logit_softcapping", "output_multiplier", "qk_scale_factor", "post_norm_eps")}

MUSE_MODELS = {
    # Every fourth layer from the last one down sees all tokens and does not rotate: here the first and the last.
    "muse-glimmer": Model("muse_glimmer_text", seed=1311, settings={**GLIMMER, "num_hidden_layers": 5}, legacy=None, batches={"b1": BATCHES["b1"]}, norms_add_one=True),
    # The last layer sees all tokens and does not rotate, as the first does; layers 1 and 3 are dense.
    "muse-spark": Model(
        "muse_spark_text",
        seed=1301,
        settings={**MUSE, "num_hidden_layers": 5, "mlp_layer_types": ["sparse", "dense", "sparse", "dense", "sparse"]},
        legacy=None,
        batches=ALL,
        norms_add_one=True,
    ),
    # Experts in all layers, of a stream wider than the model's; the layer that rotates is the one that sees all; some gates are so far open that the residual's is cut off.
    "muse-spark-open": Model(
        "muse_spark_text",
        seed=1302,
        settings={
            **MUSE,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "sliding_attention"],
            "layer_rope_theta": [300.0, 0],
            "rope_parameters": rope(300.0),
            "attention_bias": True,
            "residual_gate_temperature": 0.06,
            "num_experts_per_tok": 3,
            "moe_hidden_size": 26,
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches=ONE,
        norms_add_one=True,
    ),
}
