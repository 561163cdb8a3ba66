#!/usr/bin/env python3
"""Streams a small model of every causal LM that the installed transformers has, by its own code, and compares all gradients with its own.

    python3 scripts/any_model.py [--out results/any-model] [--only NAME,...] [--seconds 60] [--resume]

float64 throughout, rows of 23 tokens, chunks of 7, 6 and 2, padding on the left and on the right. Writes results.jsonl and README.md to --out: family, lane,
error, and the reason where layers ran whole or no small config could be made, with machine, commit and versions. Exit code 1 if a gradient is wrong (more than 1e-9 of its largest entry).
Runs itself in the environment of scripts/python_environment.py.
"""

import argparse
import json
import os
import signal
import sys
import warnings
from pathlib import Path

from machine import environment, made_by

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1e-9
FLOOR = 1e-6  # of the largest gradient: what is smaller is noise of a gradient that is 0 (key biases without rotary)
TOKENS = 23
# Tried on every config that has the key.
SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 64, "sliding_window": 5, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "n_embd": 32, "n_head": 4, "n_layer": 3,
    "n_inner": 48, "n_positions": 64, "n_ctx": 64, "ffn_dim": 48, "d_model": 32, "word_embed_proj_dim": 32, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "qk_head_dim": 16, "n_group": 1, "topk_group": 1, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8,
    "mamba_n_groups": 1, "mamba_chunk_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 16, "mamba_expand": 2, "mamba_dt_rank": 4, "ssm_state_size": 8,
    "state_size": 8, "n_groups": 1, "chunk_size": 8, "num_heads": 4, "n_layers": 3, "n_heads": 4, "max_seq_len": 64, "rotary_dim": 4,
    "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "first_k_dense_replace": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "lru_width": 32, "attention_window_size": 5,
    "embedding_size": 32, "conv_L_cache": 3, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 61, "laurel_rank": 4, "num_kv_shared_layers": 2,
    "expert_intermediate_size": 16, "moe_num_experts": 4, "moe_k": 2, "moe_topk": 2, "block_size": 8, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 16,
    "num_attention_groups": 2, "share_q_dim": 16, "use_mamba_kernels": False, "max_window_layers": 1, "dt_rank": 4, "time_step_rank": 4, "num_mem_blocks": 1,
    "attention_hidden_size": 32, "kv_channels": 8, "adapter_rank": 4, "mamba_ngroups": 1, "mamba_headdim": 16, "n_mamba_heads": 4, "mamba_d_ssm": 64,
    "n_shared_experts": 1, "global_head_dim": 8, "dim_ff": 48, "dim_head": 8, "encoder_hash_byte_group_vocab": 61, "linear_head_dim": 8, "linear_num_heads": 4, "pronunciation_vocab_size": 61, "shape_vocab_size": 61,
    "shared_experts_intermediate_size": 16,
}
# What a family needs besides.
OF_FAMILIES = {
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}, "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}},
    "cohere_compass_text": {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "deepseek_v4": {"num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 8},
    "dots3_note_text": {"num_key_value_heads": 4},
    "longcat_flash": {"num_layers": 2, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "zero_expert_num": 2},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8, "indexer_compress_ratio": 2, "hc_lowrank": 8},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "num_hidden_layers": 4, "attention_hidden_size": 64, "attention_head_dim": 16, "head_dim": 16},
    **dict.fromkeys(("inkling2_text", "inkling2_loop_text"), {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "sliding_window_size": 5, "rel_extent": 16,
                                                              "unpadded_vocab_size": 61, "n_layers_per_attn_res_block": 2}),
}
ZERO = ("dropout", "pdrop", "jitter", "layerdrop")


# Keys to leave out, where a family means something else by them, and others instead.
VARIANTS = (((), {}), (("layer_types",), {}), (("head_dim",), {}), ((), {"num_key_value_heads": 4}), (("head_dim", "layer_types"), {"num_key_value_heads": 4}),
            (("head_dim", "qk_head_dim", "rotary_dim"), {}), (("layer_types", "head_dim", "sliding_window"), {}), (("num_hidden_layers",), {}))


def small_settings(kind, drop=(), others=None):
    """Settings by which `kind`, a class of configs, and the configs inside it are small."""
    from transformers import PreTrainedConfig

    default = kind()
    found = vars(default)
    settings = {key: value for key, value in SMALL.items() if key in found or key in getattr(kind, "attribute_map", {})}
    for key, value in found.items():
        if isinstance(value, float) and any(word in key for word in ZERO):
            settings[key] = 0.0
        elif isinstance(value, PreTrainedConfig):
            settings[key] = type(value)(**small_settings(type(value), drop, OF_FAMILIES.get(value.model_type))).to_dict() | {"model_type": value.model_type}
    names = getattr(kind, "attribute_map", {})
    settings = {key: value for key, value in settings.items() if key not in names or names[key] not in settings}
    kinds = found.get("layer_types")
    if isinstance(kinds, (list, tuple)) and "num_hidden_layers" in settings:
        some = list(dict.fromkeys(kinds))
        settings["layer_types"] = (some * settings["num_hidden_layers"])[: settings["num_hidden_layers"]]
    return {key: value for key, value in settings.items() if key not in drop} | (others or {})


def small_config(model_type, drop=(), others=None):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    config = kind(**small_settings(kind, drop, OF_FAMILIES.get(model_type, {}) | (others or {})))
    config.is_decoder = True
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"  # grouped products know no float64
    return config


def batch_of(vocab, side):
    import torch

    ids = torch.randint(3, vocab, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if side == "left":
        mask[0, :4] = 0
    else:
        mask[0, -4:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, 1:][mask[:, :-1] == 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def step(model, batch):
    model.zero_grad(set_to_none=True)
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def difference(ours, theirs):
    top = max(float(each.abs().max()) for each in theirs.values())
    worst = 0.0
    for name in theirs.keys() | ours.keys():
        if name not in theirs or name not in ours:
            one = theirs.get(name, ours.get(name))
            error = float(one.abs().max()) / top
        else:
            error = float((ours[name] - theirs[name]).abs().max()) / max(float(theirs[name].abs().max()), FLOOR * top)
        if not error <= worst:
            worst = error
    return worst


def small_model(kind, config):
    import torch

    if not isinstance(config, kind.config_class):
        config = config.get_text_config(decoder=True)
        config._attn_implementation = config._experts_implementation = "eager"
    with torch.device("meta"):
        size = sum(each.numel() for each in kind(config).parameters())
    if size > 4_000_000:
        raise ValueError("more than 4 million parameters")
    torch.manual_seed(0)
    model = kind(config).double().train()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn(each.shape, generator=generator, dtype=torch.float64) * 0.15)
        for name, table in model.named_buffers():
            if name.endswith(".tid2eid"):  # a token's experts, all different, which zeros are not
                table.copy_(torch.rand(len(table), config.n_routed_experts, generator=generator).argsort(dim=1)[:, : table.shape[1]])
    return model


def run_family(model_type, names):
    """{"family", "lane", "error", "reason"}; lane: "module", "mixed", "whole" or "none"."""
    import streambp_bench as sb
    import torch
    import transformers
    from goldens.passes import InFloat64
    from streambp_bench._module_lane import node
    from streambp_bench._replaced import patched_state

    line = {"family": model_type, "lane": "none", "error": None, "reason": ""}
    batches = {7: batch_of(61, "left"), 6: batch_of(61, "right"), 2: batch_of(61, "left")}
    for variant in VARIANTS:
        try:
            with InFloat64():
                model = small_model(getattr(transformers, names), small_config(model_type, *variant))
                theirs = {chunk: step(model, batch) for chunk, batch in batches.items()}
                again = step(model, batches[7])
            break
        except ValueError as error:
            if "million" in str(error):
                return line | {"reason": f"no small model: {error}"}
            line["reason"] = line["reason"] or f"no small model: {str(error).splitlines()[0][:160] if str(error) else ''}"
        except Exception as error:  # of whatever kind a config's own checks or a forward pass raise
            line["reason"] = line["reason"] or f"no small model: {type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
    else:
        return line
    spread = difference(again[1], theirs[7][1])
    if not spread <= LIMIT:
        return line | {"reason": f"its own gradients differ from run to run, by {spread:.0e}"}
    node.around = InFloat64
    try:
        with InFloat64(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = patched_state(sb.patch(model, lane="module"))
            errors = []
            for state.chunk, batch in batches.items():
                loss, ours = step(model, batch)
                errors += [difference(ours, theirs[state.chunk][1]), abs(loss - theirs[state.chunk][0]) / abs(theirs[state.chunk][0])]
            found = [(type(call.layer).__name__, call.reason or call.warned) for call in state.calls]
            lanes = {"whole" if call.reason or call.warned else "module" for call in state.calls}
            sb.unpatch(model)
    except sb.InputError as error:
        return line | {"lane": "refused", "reason": str(error)[:200]}
    except Exception as error:
        return line | {"lane": "failed", "reason": f"{type(error).__name__}: {str(error)[:200]}"}
    lane = lanes.pop() if len(lanes) == 1 else "mixed"
    worst = max(errors) if all(each == each for each in errors) else float("nan")
    reasons = [f"{kind}: {reason}" for kind, reason in found if reason]
    return line | {"lane": lane, "error": worst, "reason": "; ".join(dict.fromkeys(reasons))[:300]}


def is_wrong(line):
    return line["lane"] == "failed" or (line["error"] is not None and not line["error"] <= LIMIT)


def page(lines):
    counts = {lane: sum(line["lane"] == lane for line in lines) for lane in ("module", "mixed", "whole", "refused", "failed", "none")}
    words = [f"{counts['module']} families streamed, {counts['mixed']} with some layers whole, {counts['whole']} whole, {counts['refused']} refused, "
             f"{counts['none']} without a small model, {counts['failed']} failed; wrong: {sum(map(is_wrong, lines))}."]
    rows = [f"| {line['family']} | {line['lane']} | {'' if line['error'] is None else format(line['error'], '.1e')} | {line['reason'].replace('|', '/')} |"
            for line in lines]
    return "\n".join(["# Any model by its own code", "", *words, "", *made_by(lines), "Made by `scripts/any_model.py`.", "", "| family | lane | error | reason |", "|---|---|---|---|",
                      *rows, ""])


class TooLong(BaseException):
    """Past everything that catches errors of models."""


def too_long(*_):
    raise TooLong("it takes too long")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results/any-model")
    parser.add_argument("--only", default="")
    parser.add_argument("--resume", action="store_true", help="keep the families that results.jsonl has")
    parser.add_argument("--seconds", type=int, default=60, help="of computing, for each family")
    arguments = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError:
        torch = None
    if torch is None or "STREAMBP_ANY_MODEL" not in os.environ:
        from python_environment import venv_python

        paths = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "streambp/python"), str(ROOT / "scripts")])
        more = {"STREAMBP_ANY_MODEL": "1", "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        python = str(venv_python())
        os.execve(python, [python, *sys.argv], {**os.environ, **more})
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(60)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    common = {"environment": environment("torch", "transformers")}
    chosen = [each for each in arguments.only.split(",") if each]
    arguments.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGVTALRM, too_long)
    results = arguments.out / "results.jsonl"
    lines = [json.loads(each) for each in results.read_text(encoding="utf-8").splitlines()] if arguments.resume and results.exists() else []
    done = {line["family"] for line in lines}
    with open(results, "a" if done else "w", encoding="utf-8") as file:
        for model_type, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
            if chosen and model_type not in chosen or model_type in done:
                continue
            signal.setitimer(signal.ITIMER_VIRTUAL, arguments.seconds)
            try:
                line = run_family(model_type, names if isinstance(names, str) else names[0])
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            except TooLong as error:
                line = {"family": model_type, "lane": "none", "error": None, "reason": str(error)}
            print(*line.values(), flush=True)
            lines.append(line | common)
            print(json.dumps(lines[-1]), file=file, flush=True)
    text = page(lines)
    (arguments.out / "README.md").write_text(text, encoding="utf-8")
    print(text.splitlines()[2])
    return 1 if any(map(is_wrong, lines)) else 0


if __name__ == "__main__":
    sys.exit(main())
