"""The worker of hf_worker.py with the authors' code (github.com/Ledzy/StreamBP), in the environment that it pins.

Methods: authors+chunk=500+logits=100 (chunks of layers and of the head), and authors-checkpoint, its transformers' own checkpointing.
"""

import importlib.util
from pathlib import Path

import torch
import transformers
from compare.authors_environment import CODE
from compare.hf_worker import Worker, main


class AuthorsWorker(Worker):
    def __init__(self, options):
        super().__init__(options)
        # The file alone: the package's __init__ imports trainers, and with them TRL.
        spec = importlib.util.spec_from_file_location("stream_model", Path(options.authors) / CODE)
        self.code = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.code)
        self.stream = None

    @staticmethod
    def load(options, attention):
        return transformers.AutoModelForCausalLM.from_pretrained(
            options.model, torch_dtype=getattr(torch, options.dtype), attn_implementation=attention, output_loading_info=True
        )

    def set_method(self, method):
        name, *settings = method.split("+")
        sizes = {key: int(value) for key, value in (setting.split("=") for setting in settings)}
        if name == "authors":
            if self.stream is None:
                self.stream = self.code.StreamModel(self.model, gradient_accumulation_steps=1)
            self.stream.checkpoint_chunk_size, self.stream.logits_chunk_size = sizes["chunk"], sizes["logits"]
            self.stream.gradient_checkpointing_enable()
            self.stream.train()
        elif self.stream is not None:
            raise RuntimeError("their layers stay in place once they were put there")
        else:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.method = method

    def backward(self, tokens):
        if self.method == "authors-checkpoint":
            return super().backward(tokens)
        # Its forward pass fills the gradients itself. Without a mask its chunks of queries would be aligned with the first keys.
        return self.stream(input_ids=tokens["input_ids"], attention_mask=torch.ones_like(tokens["input_ids"]), labels=tokens["labels"], use_cache=False,
                           output_attentions=False, output_hidden_states=False, return_dict=True).loss.item()

    def named(self, gradients):
        return {name.replace(".base_layer", "").replace(".self_attn.self_attn", ".self_attn"): each for name, each in gradients.items()}


if __name__ == "__main__":
    main(AuthorsWorker)
