"""What the examples train, so that nothing is downloaded: a small Qwen3 with random weights, and letters as tokens."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = 260  # bytes, and four special tokens


def tiny_model(seed=0, **settings):
    """A Qwen3 of two layers of 64, about 0.1 million parameters, in float32."""
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(**{
        "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096, "pad_token_id": 256, "eos_token_id": 257,
        "bos_token_id": 258, "tie_word_embeddings": True, **settings})
    return transformers.Qwen3ForCausalLM(config)


def byte_tokenizer():
    """A tokenizer whose tokens are the characters of ASCII."""
    words = {chr(code): code for code in range(128)} | {"<pad>": 256, "<eos>": 257, "<bos>": 258, "<unk>": 259}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>",
                                                unk_token="<unk>")
