"""The recipes of scripts/pages/live_models.py: trainers of TRL and transformers with their settings."""

import copy

import datasets
import peft
import torch
import transformers
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

TEXT = "The quick brown fox jumps over the lazy dog, and runs away from the rain; nobody knows why it ran. "
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
         "max_position_embeddings": 256, "tie_word_embeddings": False}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "router_aux_loss_coef": 0.01}
# Of these two the model's own loss has the routers' as well.
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.01, "output_router_logits": True}
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
# name: (class, settings, the recipes that it runs; none: all); with a vision_config the settings are a whole model's, next to its text's
MODELS = {
    "qwen3": ("Qwen3", {}, ()),
    "qwen3-moe": ("Qwen3Moe", EXPERTS, ()),
    "mixtral": ("Mixtral", LOCAL_EXPERTS, ("SFT", "DPO", "GRPO", "Trainer", "Trainer, accumulation 2")),
    "gpt-oss": ("GptOss", {**LOCAL_EXPERTS, "sliding_window": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
                ("SFT", "DPO", "GRPO", "Trainer", "Trainer, accumulation 2")),
    "gemma3-whole": ("Gemma3", {"vision_config": TOWER, "mm_tokens_per_image": 4}, ("SFT", "DPO", "GRPO", "Trainer")),
}
# TRL's own defaults otherwise. max_grad_norm only scales gradients after they are compared.
COMMON = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "max_steps": 2, "logging_strategy": "no", "bf16": False,
          "gradient_checkpointing": False, "per_device_train_batch_size": 2, "learning_rate": 1e-3}
END_KEPT = {"max_length": 10, "truncation_mode": "keep_end"}  # shorter than some completions: those rows have no prompt left
SAMPLED = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 10}


def byte_tokenizer():
    """A tokenizer of bytes, made without a file; vocabulary 259."""
    words = {word: i for i, word in enumerate(("<pad>", "<eos>", "<bos>", *sorted(pre_tokenizers.ByteLevel.alphabet())))}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")


def make_model(name, scores=False):
    """A tiny model of MODELS with random weights, large enough that every gradient matters, in torch's default dtype."""
    more = {"vocab_size": len(byte_tokenizer()), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, **SIZES}
    if scores:
        more["num_labels"] = 1
    torch.manual_seed(4)
    family, settings, _ = MODELS[name]
    config = getattr(transformers, f"{family}Config")
    if "vision_config" in settings:
        model = getattr(transformers, f"{family}ForConditionalGeneration")(config(text_config=more, **copy.deepcopy(settings)))
    else:
        model = getattr(transformers, f"{family}For{'SequenceClassification' if scores else 'CausalLM'}")(config(**more, **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    return model


def lora(scores=False):
    return peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "o_proj"],
                           task_type="SEQ_CLS" if scores else "CAUSAL_LM")


def trained(model):
    """`model` with an adapter whose update is not zero, as one that has been trained before."""
    model = peft.get_peft_model(model, lora())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def surprise(completions, **_):
    """A reward, which differs between completions."""
    return [sum(ord(letter) * (i + 1) for i, letter in enumerate(text)) % 17 / 16 for text in completions]


ROWS = {
    "texts": [{"text": TEXT[: 12 + 3 * i]} for i in range(16)],
    "completions": [{"prompt": TEXT[: 6 + i], "completion": TEXT[20: 30 + 2 * i]} for i in range(16)],
    "pairs": [{"prompt": TEXT[: 6 + i], "chosen": TEXT[20: 32 + i], "rejected": TEXT[31: 40 + 2 * i]} for i in range(8)],
    "judged": [{"prompt": TEXT[: 6 + i], "completion": TEXT[20: 32 + i], "label": i % 2 == 0} for i in range(8)],
    "scored": [{"chosen": TEXT[: 12 + i], "rejected": TEXT[31: 40 + 2 * i]} for i in range(8)],
    "prompts": [{"prompt": TEXT[i: i + 6 + i % 4]} for i in range(16)],
    "tokens": [{"input_ids": byte_tokenizer()(TEXT[: 12 + 3 * i])["input_ids"]} for i in range(16)],
}


SFT, DPO, KTO = (trl.SFTTrainer, trl.SFTConfig), (trl.DPOTrainer, trl.DPOConfig), (trl.KTOTrainer, trl.KTOConfig)
GRPO, RLOO = (trl.GRPOTrainer, trl.GRPOConfig), (trl.RLOOTrainer, trl.RLOOConfig)
REWARD = (trl.RewardTrainer, trl.RewardConfig)
PLAIN = (transformers.Trainer, transformers.TrainingArguments)
# name: (trainer, configuration), rows, settings, adapters
RECIPES = {
    "SFT": (SFT, "texts", {}, ("none", "fresh")),
    "SFT, packed": (SFT, "texts", {"packing": True, "max_length": 40}, ("none", "fresh")),
    "SFT, padding-free": (SFT, "texts", {"padding_free": True, "max_length": None}, ("none", "fresh")),
    "SFT, completion only": (SFT, "completions", {}, ("none", "fresh")),
    "SFT, accumulation 2": (SFT, "completions", {"gradient_accumulation_steps": 2}, ("none",)),
    "SFT, checkpointing": (SFT, "texts", {"gradient_checkpointing": True}, ("none",)),
    "DPO": (DPO, "pairs", {}, ("none", "fresh", "trained")),
    "DPO, IPO, end kept": (DPO, "pairs", {"loss_type": ["ipo"], **END_KEPT}, ("none", "fresh")),
    "DPO, sigmoid_norm, end kept": (DPO, "pairs", {"loss_type": ["sigmoid_norm"], **END_KEPT}, ("none",)),
    "KTO": (KTO, "judged", {"per_device_train_batch_size": 4}, ("none", "fresh", "trained")),
    "GRPO": (GRPO, "prompts", {**SAMPLED, "steps_per_generation": 1}, ("none", "fresh")),
    "GRPO, steps_per_generation 2": (GRPO, "prompts", {**SAMPLED, "steps_per_generation": 2}, ("none", "fresh")),
    "GRPO, steps_per_generation 4": (GRPO, "prompts", {**SAMPLED, "steps_per_generation": 4}, ("none", "fresh")),
    "GRPO, accumulation 2 of 4": (GRPO, "prompts", {**SAMPLED, "steps_per_generation": 4, "gradient_accumulation_steps": 2}, ("none",)),
    "GRPO, beta 0.1": (GRPO, "prompts", {**SAMPLED, "beta": 0.1}, ("none", "fresh", "trained")),
    "GRPO, truncated left out": (GRPO, "prompts", {**SAMPLED, "mask_truncated_completions": True}, ("none",)),
    "RLOO": (RLOO, "prompts", SAMPLED, ("none", "fresh", "trained")),
    "reward": (REWARD, "scored", {}, ("none", "fresh")),
    "ORPO": ((ORPOTrainer, ORPOConfig), "pairs", {}, ("none", "fresh")),
    "Trainer": (PLAIN, "tokens", {}, ("none", "fresh")),
    "Trainer, accumulation 2": (PLAIN, "tokens", {"gradient_accumulation_steps": 2}, ("none",)),
    "CPO": ((CPOTrainer, CPOConfig), "pairs", {}, ("none", "fresh")),
}


def make_trainer(recipe, model_name, adapter, folder):
    """The trainer of a recipe; the model's folder is where a trainer finds its reference model."""
    (trainer, configuration), rows, settings, _ = RECIPES[recipe]
    scores = trainer is trl.RewardTrainer
    model = make_model(model_name, scores)
    model.save_pretrained(folder)
    model.config._name_or_path = folder
    more = {"peft_config": lora(scores)} if adapter == "fresh" else {}
    if trainer is transformers.Trainer:
        if more:
            model = peft.get_peft_model(model, more.pop("peft_config"))
        more["data_collator"] = transformers.DataCollatorForLanguageModeling(byte_tokenizer(), mlm=False)
    if trainer in (trl.GRPOTrainer, trl.RLOOTrainer):
        more["reward_funcs"] = surprise
    torch.manual_seed(8)
    return trainer(model=trained(model) if adapter == "trained" else model, args=configuration(output_dir=folder, **{**COMMON, **settings}),
                   train_dataset=datasets.Dataset.from_list(ROWS[rows]), processing_class=byte_tokenizer(), **more)
