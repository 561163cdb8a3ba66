"""Text models of which transformers has decoder and towers, and no class of decoder and head alone: put together here."""

from importlib import import_module
from importlib.util import find_spec


def register_class(name):
    """AutoModelForCausalLM learns of `name`ForCausalLM, which transformers has and does not list, if this transformers has it."""
    import transformers

    if hasattr(transformers, f"{name}ForCausalLM"):
        transformers.AutoModelForCausalLM.register(getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM"), exist_ok=True)


def register_text_model(package, name):
    """AutoModelForCausalLM learns what `name`ForConditionalGeneration of transformers.models.`package` makes of text, if this transformers has it."""
    if find_spec(f"transformers.models.{package}") is None:
        return
    import torch
    import transformers
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast

    modeling = import_module(f"transformers.models.{package}.modeling_{package}")
    configuration, decoder = (getattr(modeling, name + part) for part in ("TextConfig", "TextModel"))

    class TextModel(getattr(modeling, f"{name}PreTrainedModel"), transformers.GenerationMixin):
        config_class = configuration
        config: configuration
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

        def __init__(self, config):
            super().__init__(config)
            self.model = decoder(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, input_ids=None, attention_mask=None, position_ids=None, inputs_embeds=None, labels=None, use_cache=None, logits_to_keep=0, **kwargs):
            outputs = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs
            )
            hidden = outputs[0] if isinstance(logits_to_keep, int) and logits_to_keep == 0 else outputs[0][:, -logits_to_keep:]
            logits = self.lm_head(hidden) * getattr(self.config, "output_multiplier", 1.0)
            cap = getattr(self.config, "final_logit_softcapping", None)
            if cap is not None:
                logits = torch.tanh(logits / cap) * cap
            loss = None if labels is None else self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
            return MoeCausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=outputs.hidden_states, router_logits=getattr(outputs, "router_logits", None))

    TextModel.__name__ = TextModel.__qualname__ = f"{name}ForCausalLM"
    # exist_ok: else a class of transformers's own is passed over in silence.
    transformers.AutoModelForCausalLM.register(configuration, TextModel, exist_ok=True)
