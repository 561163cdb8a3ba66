"""The classes of transformers that the engine knows, by their names."""

# Of text alone.
FAMILIES = (
    "Bamba", "Cohere", "Cohere2", "DeepseekV3", "DeepseekV32", "DeepseekV4", "Ernie4_5", "Ernie4_5_Moe", "Exaone4", "FalconH1", "Gemma", "Gemma2", "Gemma3",
    "Gemma3Text", "Gemma4", "Glm4", "Glm4Moe", "Glm4MoeLite", "GlmMoeDsa", "GptOss", "Granite", "GraniteMoe", "GraniteMoeHybrid", "GraniteMoeShared", "Helium",
    "HYV4", "HunYuanDenseV1", "KimiLinear", "Lfm2", "Lfm2Moe", "Lfm3", "Llama", "MiniMaxM2", "MiniMaxM3VL", "Ministral3", "Mistral", "Mistral4", "Mixtral", "NemotronH", "Olmo2", "Olmo3",
    "Phi3", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Qwen3Next", "Qwen3_5", "Qwen3_5Moe", "Qwen3_5Text", "Qwen4Exp", "SeedOss", "SmolLM3", "Zamba2",
)
# Those of which transformers has no class with a score.
UNSCORED = ("Bamba", "Cohere", "Cohere2", "DeepseekV32", "DeepseekV4", "Ernie4_5", "Ernie4_5_Moe", "FalconH1", "Gemma3", "Gemma4", "Glm4Moe", "Glm4MoeLite", "GlmMoeDsa", "Granite",
            "GraniteMoe", "GraniteMoeHybrid", "GraniteMoeShared", "HYV4", "KimiLinear", "Lfm2", "Lfm2Moe", "Lfm3", "MiniMaxM2", "MiniMaxM3VL", "NemotronH", "Qwen3_5", "Qwen3_5Moe", "Qwen4Exp")
CLASSES = tuple(f"{family}ForCausalLM" for family in FAMILIES if family not in ("Gemma3Text", "Qwen3_5Text")) + tuple(
    f"{family}ForSequenceClassification" for family in FAMILIES if family not in UNSCORED)
# A whole model's class: what its decoder and its head alone would be, by the decoder's class.
WHOLE = {
    "Gemma3ForConditionalGeneration": {"Gemma3TextModel": "Gemma3ForCausalLM"},
    "Gemma4ForConditionalGeneration": {"Gemma4TextModel": "Gemma4ForCausalLM"},
    "MuseGlimmerForConditionalGeneration": {"MuseGlimmerTextModel": "MuseGlimmerForCausalLM"},
    "MuseSparkForConditionalGeneration": {"MuseSparkTextModel": "MuseSparkForCausalLM"},
    "Mistral3ForConditionalGeneration": {"MistralModel": "MistralForCausalLM", "Ministral3Model": "Ministral3ForCausalLM", "Mistral4Model": "Mistral4ForCausalLM"},
    "Lfm2VlForConditionalGeneration": {"Lfm2Model": "Lfm2ForCausalLM", "Lfm2MoeModel": "Lfm2MoeForCausalLM"},
    "Lfm3VlForConditionalGeneration": {"Lfm3Model": "Lfm3ForCausalLM"},
    "Kimi_K25ForConditionalGeneration": {"DeepseekV3Model": "DeepseekV3ForCausalLM"},
    # Of which transformers has not the class of text alone.
    "Step3p7ForConditionalGeneration": {"Step3p7TextModel": "Step3p7ForCausalLM"},
    "MistralLarge4ForConditionalGeneration": {"MistralLarge4TextModel": "MistralLarge4ForCausalLM"},
    "MiniMaxM3SparseForConditionalGeneration": {"MiniMaxM3VLTextModel": "MiniMaxM3VLForCausalLM"},
    "Glm5NextForConditionalGeneration": {"Glm5NextTextModel": "Glm5NextForCausalLM"},
    "Qwen3_5ForConditionalGeneration": {"Qwen3_5TextModel": "Qwen3_5ForCausalLM"},
    "Qwen3_5MoeForConditionalGeneration": {"Qwen3_5MoeTextModel": "Qwen3_5MoeForCausalLM"},
    "Qwen4ExpForConditionalGeneration": {"Qwen4ExpTextModel": "Qwen4ExpForCausalLM"},
}
# What the engine calls modules of the decoder that some class calls otherwise.
ENGINE_NAMES = {**{f"model.{norm}.": "model.norm." for norm in ("embedding_norm", "final_layernorm", "norm_f")}, "model.embeddings.": "model.embed_tokens."}
# Parts of names within layers that files, and the engine, call otherwise: of Granite's, ERNIE's and MiniMax's mixtures.
ENGINE_PARTS = {
    ".block_sparse_moe.experts.gate_up_proj": ".block_sparse_moe.input_linear.weight",
    ".block_sparse_moe.experts.down_proj": ".block_sparse_moe.output_linear.weight",
    ".block_sparse_moe.router.weight": ".block_sparse_moe.router.layer.weight",
    ".gate.moe_statics.": ".moe_statics.",
    ".mlp.e_score_correction_bias": ".mlp.gate.e_score_correction_bias",
}
# Model types whose files have the experts of a layer in two tensors, as transformers does.
WHOLE_EXPERTS = ("gemma4_text", "gpt_oss", "granitemoe", "granitemoehybrid", "granitemoeshared", "hy_v4", "minimax_m3_vl_text", "muse_spark_text", "mistral4")
# Model types whose embedding_multiplier is of the embeddings they look up, not of those that are given.
SCALES_OWN_EMBEDDINGS = ("falcon_h1",)
# What a whole class's forward leaves out of its text config.
NOT_RUN = {"Gemma3ForConditionalGeneration": {"final_logit_softcapping": None}}
