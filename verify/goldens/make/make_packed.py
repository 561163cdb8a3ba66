#!/usr/bin/env python3
"""Writes what transformers makes of weights in MXFP4 and FP8 (dequantize=True): verify/goldens/quantized.

    pip install torch==2.11.0 transformers==5.23.0 accelerate safetensors numpy
    python verify/goldens/make/make_packed.py --out verify/goldens/quantized

packed.safetensors: NAME is mxfp4-... or fp8-...; NAME.weight_blocks and NAME.weight_scales, or NAME.weight and NAME.weight_scale_inv, what files
hold; NAME.block the rows and columns of FP8's blocks, absent: one scale; NAME.bfloat16 and NAME.float32 what that stands for in a parameter of this
dtype. Every byte of a scale and every value is among them but NaN, and blocks that are not full.

mxfp4/ and fp8/: a GPT-OSS and a Qwen3 as they are published; truth.safetensors has tokens [2, 9], value.NAME of each packed parameter as
from_pretrained(dequantize=True) gives it, and of the float64 model of these weights log_probabilities [2, 8] of tokens 1, 2, ... of each row, the
loss that transformers takes of them and grad.NAME of every parameter.

fp8-fp4/: the same of a DeepSeek V4, whose experts are in FP4 (two values a byte, a scale for 32 of them) and whose other matrices are in FP8, and names
those of published files; it alone is written where transformers has the class (torch 2.15.0 and transformers 5.24.0).
"""
import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
from goldens.passes import InFloat64, as_in_file, load_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, GptOssConfig, Mxfp4Config, Qwen3Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, _dequantize_fp8_weight
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_bytes(*shape, seed, low=0, high=256):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def add_mxfp4(tensors, name, blocks, scales, dtypes=tuple(DTYPES)):
    tensors |= {f"{name}.weight_blocks": blocks, f"{name}.weight_scales": scales}
    for dtype_name in dtypes:
        dtype = DTYPES[dtype_name]
        tensors[f"{name}.{dtype_name}"] = convert_moe_packed_tensors(blocks, scales, dtype=dtype)


def add_fp8(tensors, name, weight, scales, block):
    """Full blocks as from_pretrained dequantises them; it refuses others, which modules that stay in FP8 know how to take."""
    weight = weight.to(torch.float8_e4m3fn)
    tensors |= {f"{name}.weight": weight, f"{name}.weight_scale_inv": scales}
    if block is not None:
        tensors[f"{name}.block"] = torch.tensor(block)
    is_full = block is None or (weight.shape[0] % block[0] == 0 and weight.shape[1] % block[1] == 0)
    for dtype_name, dtype in DTYPES.items():
        if is_full:
            numbers = Fp8Dequantize(None)._dequantize_one(weight, scales, dtype)
        else:
            numbers = _dequantize_fp8_weight(weight, scales, list(block), torch.float32).to(dtype)
        tensors[f"{name}.{dtype_name}"] = numbers


def matrices():
    tensors = {}
    add_mxfp4(tensors, "mxfp4-small", random_bytes(3, 5, 2, 16, seed=1), random_bytes(3, 5, 2, seed=2, low=110, high=130))
    add_mxfp4(tensors, "mxfp4-scales", random_bytes(1, 255, 1, 16, seed=3), torch.arange(255).to(torch.uint8).view(1, 255, 1),
              dtypes=("bfloat16",))
    codes = torch.cat([torch.arange(0, 127), torch.arange(128, 255)]).to(torch.uint8).view(torch.float8_e4m3fn)
    add_fp8(tensors, "fp8-codes", codes.view(2, 127), random(2, 1, seed=4).exp() * 1e-3, (1, 127))
    grid = random(3, 2, seed=5).exp() * 1e-2
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        add_fp8(tensors, f"fp8-{str(dtype).removeprefix('torch.')}", 50 * random(6, 8, seed=6), grid.to(dtype), (2, 4))
    powers = random_bytes(3, 2, seed=7, low=100, high=130)
    add_fp8(tensors, "fp8-bytes", 50 * random(6, 8, seed=8), powers, (2, 4))
    add_fp8(tensors, "fp8-e8m0", 50 * random(6, 8, seed=9), powers.clone().view(torch.float8_e8m0fnu), (2, 4))
    add_fp8(tensors, "fp8-one", 50 * random(5, 7, seed=10), torch.tensor(0.0123), None)
    add_fp8(tensors, "fp8-one-of-one", 50 * random(5, 7, seed=10), torch.tensor([0.0123], dtype=torch.bfloat16), None)
    add_fp8(tensors, "fp8-edges", 50 * random(7, 11, seed=11), random(3, 3, seed=12).exp() * 1e-2, (3, 4))
    add_fp8(tensors, "fp8-below-a-block", 50 * random(7, 11, seed=13), torch.tensor([[0.0123]]), (128, 128))
    add_fp8(tensors, "fp8-rows-of-128", 50 * random(129, 3, seed=14), random(2, 1, seed=15).exp() * 1e-2, (128, 128))
    add_fp8(tensors, "fp8-columns-of-128", 50 * random(3, 130, seed=16), random(1, 2, seed=17).exp() * 1e-2, (128, 128))
    return tensors


def small_gpt_oss():
    """Its tensors, experts in MXFP4, and its config."""
    config = GptOssConfig(vocab_size=29, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                          head_dim=8, num_local_experts=3, num_experts_per_tok=2, sliding_window=4, layer_types=["sliding_attention"],
                          rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, dtype="bfloat16")
    config.quantization_config = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    tensors = random_weights(config, 20)
    for name in [name for name in tensors if name.endswith("_proj")]:
        experts, inputs, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = random_bytes(experts, outputs, inputs // 32, 16, seed=21)
        tensors[f"{name}_scales"] = random_bytes(experts, outputs, inputs // 32, seed=22, low=121, high=125)
    return config, tensors


def small_qwen3():
    """Its tensors, some of the layers' matrices in FP8, and its config."""
    config = Qwen3Config(vocab_size=31, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         head_dim=4, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, dtype="bfloat16")
    config.quantization_config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [8, 4],
                                  "modules_to_not_convert": ["lm_head", "model.layers.1.self_attn.o_proj"]}
    tensors = random_weights(config, 30)
    for name in [name for name in tensors if name.endswith("_proj.weight") and name != "model.layers.1.self_attn.o_proj.weight"]:
        value = tensors[name].to(torch.float32)
        rows, columns = value.shape
        blocks = value.view(rows // 8, 8, columns // 4, 4)
        scales = (blocks.abs().amax(dim=(1, 3)) / 448).to(torch.bfloat16)
        tensors[name] = (blocks / scales.float()[:, None, :, None]).clamp(-448, 448).view(rows, columns).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scales
    return config, tensors


def fp4_of(value):
    """(pairs of E2M1 in bytes, their scales) of a matrix, by rows of 32."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    blocks = value.view(value.shape[0], -1, 32)
    exponents = (blocks.abs().amax(dim=2) / 6).log2().ceil()
    scaled = blocks / exponents.exp2()[:, :, None]
    codes = (scaled.abs()[..., None] - values).abs().argmin(dim=-1) + 8 * (scaled < 0)
    codes = codes.view(value.shape).to(torch.uint8)
    return (codes[:, 0::2] + 16 * codes[:, 1::2]).view(torch.int8), (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def fp8_of(value, size):
    """(values in E4M3, their scales) of a matrix, by squares of `size`."""
    rows, columns = value.shape
    blocks = value.view(rows // size, size, columns // size, size)
    exponents = (blocks.abs().amax(dim=(1, 3)) / 448).log2().ceil()
    scaled = blocks / exponents.exp2()[:, None, :, None]
    return scaled.view(rows, columns).to(torch.float8_e4m3fn), (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def published_v4_name(name):
    """Of the name that as_in_file() gives."""
    for ours, theirs in (("model.embed_tokens.", "embed."), ("lm_head.", "head."), ("model.hc_head.hc_", "hc_head_"), ("model.", "")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def small_deepseek_v4():
    """Its tensors, by published names, and its config."""
    config = transformers.DeepseekV4Config(
        vocab_size=29, hidden_size=32, moe_intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=16, partial_rotary_factor=0.5,
        q_lora_rank=8, o_groups=2, o_lora_rank=8, sliding_window=3, layer_types=["sliding_attention", "compressed_sparse_attention"],
        mlp_layer_types=["hash_moe", "moe"], compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 5}, n_routed_experts=3,
        num_experts_per_tok=2, index_n_heads=8, index_head_dim=8, index_topk=2, hc_mult=2, hc_sinkhorn_iters=3, max_position_embeddings=64,
        tie_word_embeddings=False, dtype="bfloat16")
    config.quantization_config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [8, 8]}
    tensors = {}
    for name, value in as_in_file(random_weights(config, 40), "deepseek_v4").items():
        name = published_v4_name(name)
        stem = name.removesuffix(".weight")
        if ".ffn.experts." in name:
            tensors[name], tensors[f"{stem}.scale"] = fp4_of(value.float())
        elif ".attn.w" in name or ".shared_experts." in name or name.endswith("indexer.wq_b.weight"):
            tensors[name], tensors[f"{stem}.scale"] = fp8_of(value.float(), 8)
        else:
            tensors[name] = value
    tables = torch.stack([torch.randperm(3, generator=torch.Generator().manual_seed(token))[:2] for token in range(29)])
    tensors["layers.0.ffn.gate.tid2eid"] = tables
    tensors["layers.1.ffn.gate.bias"] = random(3, seed=41) * 0.1
    tensors["mtp.0.attn_norm.weight"] = tensors["norm.weight"].clone()  # of a layer that predicts further tokens, which nobody reads
    return config, tensors


def random_weights(config, seed):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, parameter in model.named_parameters():
        value = torch.randn(parameter.shape, generator=generator) * 0.3
        tensors[name] = (value / 2 + 1 if "norm" in name else value).to(torch.bfloat16)
    return tensors


def write_folder(folder, config, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=1) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})


def write_truth(folder, tensors, setting, published=str):
    model, report = AutoModelForCausalLM.from_pretrained(folder, quantization_config=setting, output_loading_info=True)
    wrong = [kind for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs") if report.get(kind)]
    if wrong or model.dtype != torch.bfloat16:
        raise SystemExit(f"{folder}: {report}, {model.dtype}")
    values = {name: parameter.data for name, parameter in model.named_parameters()}
    if model.config.model_type == "deepseek_v4":
        values = as_in_file(values, "deepseek_v4")
    is_packed = {name: (stored := tensors.get(published(name))) is None or stored.element_size() == 1 for name in values}
    truth = {f"value.{name}": value for name, value in values.items() if is_packed[name]}
    tokens = torch.randint(0, model.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as plain:
        config = json.loads((folder / "config.json").read_text())
        del config["quantization_config"]
        (Path(plain) / "config.json").write_text(json.dumps(config))
        buffers = {name: value for name, value in tensors.items() if name.endswith((".tid2eid", ".gate.bias"))}
        save_file({name: value.contiguous() for name, value in (values | buffers).items()}, Path(plain) / "model.safetensors", metadata={"format": "pt"})
        with InFloat64():
            model = load_model(Path(plain))
    with InFloat64():
        outputs = model(input_ids=tokens, labels=tokens, use_cache=False)
        outputs.loss.backward()
        log_probabilities = outputs.logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None]).squeeze(2)
    truth |= {"input_ids": tokens, "log_probabilities": log_probabilities.detach(), "loss": outputs.loss.detach().view(1)}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if model.config.model_type == "deepseek_v4":
        gradients = as_in_file(gradients, "deepseek_v4")
    truth |= {f"grad.{name}": gradient for name, gradient in gradients.items()}
    save_file({name: tensor.contiguous() for name, tensor in truth.items()}, folder / "truth.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    if hasattr(transformers, "DeepseekV4ForCausalLM"):
        config, tensors = small_deepseek_v4()
        write_folder(out / "fp8-fp4", config, tensors)
        write_truth(out / "fp8-fp4", tensors, FineGrainedFP8Config(weight_block_size=(8, 8), scale_fmt="ue8m0", dequantize=True), published_v4_name)
        print(f"{out}/fp8-fp4: by transformers {transformers.__version__}")
        return
    tensors = matrices()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "packed.safetensors",
              metadata={"transformers": transformers.__version__, "torch": torch.__version__})
    for name, (config, tensors), setting in (("mxfp4", small_gpt_oss(), Mxfp4Config(dequantize=True)),
                                             ("fp8", small_qwen3(), FineGrainedFP8Config(weight_block_size=(8, 4), dequantize=True))):
        write_folder(out / name, config, tensors)
        write_truth(out / name, tensors, setting)
    print(f"{out}: by transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
