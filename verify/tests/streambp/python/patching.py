"""What the tests of sb.patch() share: tiny models of every family, batches, gradients in float64 as Hugging Face computes them."""

import contextlib

import streambp_bench as sb
import torch
import transformers
from python_case import GOLDENS, LIMIT, in_float64, model_in_float64

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
FAMILIES = ("qwen3", "qwen2", "qwen2-window", "llama", "llama-tied", "llama-yarn", "llama-yarn-mscale", "llama-dynamic", "llama-linear",
            "mistral", "phi3", "gemma2", "gemma3", "qwen3-moe", "qwen3-moe-step", "qwen3-yarn-factor", "gemma", "smollm3", "smollm3-window",
            "granite", "granite-bias", "olmo2", "olmo3", "olmo3-bases", "ministral3", "ministral3-window", "glm4", "mixtral", "qwen2-moe",
            "gpt-oss", "seed-oss", "ernie4-5", "helium", "exaone4", "exaone4-full",
            "minimax-m2", "hunyuan", "granite-hybrid", "granite-hybrid-groups", "bamba", "bamba-bias", "nemotron-h", "nemotron-h-bias", "cohere",
            "cohere2", "lfm2", "ernie4-5-moe", "granite-moe", "granite-moe-shared", "granite-hybrid-moe", "lfm2-moe", "lfm2-moe-scores", "falcon-h1",
            "falcon-h1-norm", "falcon-h1-before", "deepseek-v32", "glm-moe-dsa")
if hasattr(transformers, "KimiLinearForCausalLM"):  # since 5.24
    FAMILIES += ("kimi-linear", "kimi-linear-listed")
if hasattr(transformers, "Lfm3ForCausalLM"):
    FAMILIES += ("lfm3", "lfm3-plain")
if hasattr(transformers, "HYV4ForCausalLM"):
    FAMILIES += ("hy-v4", "hy-v4-dense")


def load(name, training=True):
    """A golden model in float64, without its routers' loss."""
    model = model_in_float64(name)
    model.config.use_cache = False
    if hasattr(model.config, "output_router_logits"):
        model.config.output_router_logits = False
    return model.train(training)


def tiny_config(**settings):
    """A Qwen3 of two layers of 16."""
    return transformers.Qwen3Config(**{
        "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
        "use_cache": False, "tie_word_embeddings": False, **settings})


def tiny(seed=0, dtype=torch.float32, **settings):
    """The model of tiny_config(), with weights large enough that every gradient matters; plain attention in float64."""
    torch.manual_seed(seed)
    config = tiny_config(**settings)
    with in_float64() if dtype == torch.float64 else contextlib.nullcontext():
        if dtype == torch.float64:
            config._attn_implementation = "eager"
        model = transformers.Qwen3ForCausalLM(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, dtype=dtype) * 0.3)
    return model.train()


def batch_of(vocab, lengths, padding="right", seed=1):
    """input_ids, attention_mask and labels of rows of `lengths` tokens; labels where a real token predicts."""
    generator = torch.Generator().manual_seed(seed)
    columns = max(lengths)
    ids = torch.randint(3, vocab, (len(lengths), columns), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, slice(columns - length, columns) if padding == "left" else slice(0, length)] = 1
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, 1:][mask[:, :-1] == 0] = -100
    labels[:, 0] = -100
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def packed_batch(vocab, lengths, seed=2):
    """One row of several documents, told apart by position_ids, without a mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocab, (1, sum(lengths)), generator=generator)
    labels, positions = ids.clone(), torch.cat([torch.arange(length) for length in lengths])
    labels[:, positions == 0] = -100
    return {"input_ids": ids, "position_ids": positions.unsqueeze(0), "labels": labels}


def gradients(model, names=None):
    """Copies of the gradients by name, without parameters that have none."""
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def step(model, batch, **more):
    """(loss, gradients) of one pass from zero."""
    model.zero_grad(set_to_none=True)
    loss = model(**batch, **more).loss
    loss.backward()
    return loss.item(), gradients(model)


def reference_step(model, batch, **more):
    """step(), with float32 islands in float64."""
    with in_float64():
        return step(model, batch, **more)


def difference(ours, theirs):
    """The largest difference of two dictionaries of tensors, relative to each of theirs' largest entry; infinite where names differ."""
    if ours.keys() != theirs.keys():
        print("only ours:", sorted(ours.keys() - theirs.keys())[:4], "only theirs:", sorted(theirs.keys() - ours.keys())[:4])
        return float("inf")
    worst = 0.0
    for name, tensor in theirs.items():
        scale = tensor.abs().max().item()
        error = (ours[name].double() - tensor.double()).abs().max().item()
        error = error / scale if scale > 0 else error
        if not error <= worst:
            worst = error
    return worst


def relative(ours, theirs):
    return abs(ours - theirs) / max(abs(theirs), 1e-300)


@contextlib.contextmanager
def patched(model, **settings):
    """model, patched inside: with lane="engine" unless another is given."""
    sb.patch(model, **{"lane": "engine", **settings})
    try:
        yield model
    finally:
        sb.unpatch(model)


def character_tokenizer():
    """A tokenizer of lower-case letters and spaces, for vocabularies of 30 tokens and more."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<eos>": 1, "<bos>": 2, **{chr(97 + i): 3 + i for i in range(26)}, " ": 29, "<unk>": 30}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>",
                                                unk_token="<unk>")


__all__ = ["FAMILIES", "GOLDENS", "LIMIT", "batch_of", "character_tokenizer", "difference", "gradients", "in_float64", "load",
           "packed_batch", "patched", "reference_step", "relative", "step", "tiny", "tiny_config"]
