"""The classes of transformers that the engine knows, by their names."""

# Of text alone.
FAMILIES = ("Bamba", "Cohere", "Cohere2", "DeepseekV3", "Ernie4_5", "Exaone4", "Gemma", "Gemma2", "Gemma3", "Gemma3Text", "Gemma4", "Glm4", "Glm4Moe", "GptOss", "Granite", "GraniteMoeHybrid", "Helium", "HunYuanDenseV1", "Lfm2", "Llama", "MiniMaxM2", "Ministral3",
            "Mistral", "Mixtral", "NemotronH", "Olmo2", "Olmo3", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Qwen3Next", "Qwen3_5", "Qwen3_5Moe",
            "Qwen3_5Text", "SeedOss", "SmolLM3")
CLASSES = tuple(f"{family}ForCausalLM" for family in FAMILIES if family not in ("Gemma3Text", "Qwen3_5Text")) + tuple(
    f"{family}ForSequenceClassification" for family in FAMILIES
    if family not in ("Bamba", "Cohere", "Cohere2", "Ernie4_5", "Gemma3", "Gemma4", "Glm4Moe", "Granite", "GraniteMoeHybrid", "Lfm2", "MiniMaxM2", "NemotronH", "Qwen3_5", "Qwen3_5Moe"))
# A whole model's class: what its decoder and its head alone would be, by the decoder's class.
WHOLE = {
    "Gemma3ForConditionalGeneration": {"Gemma3TextModel": "Gemma3ForCausalLM"},
    "Gemma4ForConditionalGeneration": {"Gemma4TextModel": "Gemma4ForCausalLM"},
    "Mistral3ForConditionalGeneration": {"MistralModel": "MistralForCausalLM", "Ministral3Model": "Ministral3ForCausalLM"},
    "Qwen3_5ForConditionalGeneration": {"Qwen3_5TextModel": "Qwen3_5ForCausalLM"},
    "Qwen3_5MoeForConditionalGeneration": {"Qwen3_5MoeTextModel": "Qwen3_5MoeForCausalLM"},
}
# What the engine calls modules of the decoder that some class calls otherwise.
ENGINE_NAMES = {**{f"model.{norm}.": "model.norm." for norm in ("embedding_norm", "final_layernorm", "norm_f")}, "model.embeddings.": "model.embed_tokens."}
# What a whole class's forward leaves out of its text config.
NOT_RUN = {"Gemma3ForConditionalGeneration": {"final_logit_softcapping": None}}
