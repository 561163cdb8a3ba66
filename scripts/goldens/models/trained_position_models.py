"""The tiny models of Mistral Large 4's text model: trained rotary frequencies and scales of queries, layers without rotation.

transformers has the class since 5.24, with its tower for images alone: decoder and head without it are put together here.
"""

from importlib.util import find_spec

from goldens.models.family_models import ALL, ONE
from goldens.models.indexed_models import INDEXED
from goldens.specs import Model, rope


def register():
    """AutoModelForCausalLM learns the text model of a transformers that has it."""
    if find_spec("transformers.models.mistral_large4") is None:
        return
    import torch
    import transformers
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast
    from transformers.models.mistral_large4.modeling_mistral_large4 import MistralLarge4PreTrainedModel, MistralLarge4TextConfig, MistralLarge4TextModel

    class MistralLarge4ForCausalLM(MistralLarge4PreTrainedModel, transformers.GenerationMixin):
        """What MistralLarge4ForConditionalGeneration makes of text (transformers 5.24, modeling_mistral_large4.py)."""

        config_class = MistralLarge4TextConfig
        config: MistralLarge4TextConfig
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

        def __init__(self, config):
            super().__init__(config)
            self.model = MistralLarge4TextModel(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, input_ids=None, attention_mask=None, position_ids=None, inputs_embeds=None, labels=None, use_cache=None, logits_to_keep=0, **kwargs):
            outputs = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs
            )
            hidden = outputs[0] if isinstance(logits_to_keep, int) and logits_to_keep == 0 else outputs[0][:, -logits_to_keep:]
            cap = self.config.final_logit_softcapping
            logits = torch.tanh(self.lm_head(hidden) / cap) * cap
            loss = None if labels is None else self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
            return MoeCausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=outputs.hidden_states, router_logits=outputs.router_logits)

    # exist_ok: else a class of transformers's own is passed over in silence.
    transformers.AutoModelForCausalLM.register(MistralLarge4TextConfig, MistralLarge4ForCausalLM, exist_ok=True)


register()

TRAINED = {key: value for key, value in INDEXED.items() if key not in ("q_lora_rank", "first_k_dense_replace", "norm_topk_prob")}

TRAINED_POSITION_MODELS = {
    # Layer 1 does not rotate, layer 3 sees what layer 2 has picked, and some groups of experts are left out.
    "mistral-large4": Model(
        "mistral_large4_text",
        seed=1001,
        settings={
            **TRAINED,
            "num_hidden_layers": 4,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "no_rope_layers": [1, 0, 1, 1],
            "index_topk": 6,
            "indexer_types": ["full", "full", "full", "shared"],
            "final_logit_softcapping": 3.0,
            "rope_parameters": rope(
                100.0, "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=2.0, beta_slow=0.25, attention_factor=1.0, mscale_all_dim=0.7
            ),
        },
        legacy=None,
        batches=ALL,
    ),
    # Layers 2 and 4 read the latents of layer 0, and layer 3, which does not rotate, those of layer 1.
    "mistral-large4-shared": Model(
        "mistral_large4_text",
        seed=1003,
        settings={
            **TRAINED,
            "num_hidden_layers": 5,
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "dense"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "index_topk": 7,
            "indexer_types": ["full", "shared", "full", "shared", "full"],
            "no_rope_layers": [1, 0, 1, 0, 1],
            "kv_source_layers": [0, 1, 0, 1, 0],
            "rope_parameters": rope(100.0),
        },
        legacy=None,
        batches=ONE,
    ),
    # Biases, a tied head, dense layers between sparse ones, and a layer without rotation that sees what one with it has picked.
    "mistral-large4-dense": Model(
        "mistral_large4_text",
        seed=1002,
        settings={
            **TRAINED,
            "mlp_layer_types": ["dense", "sparse", "dense"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "attention_bias": True,
            "index_topk": 7,
            "indexer_types": ["full", "shared", "full"],
            "no_rope_layer_interval": 2,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100.0),
        },
        legacy=None,
        batches=ONE,
    ),
}
