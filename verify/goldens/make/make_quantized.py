#!/usr/bin/env python3
"""Writes what bitsandbytes makes of small matrices and of a small model on the CPU: verify/goldens/quantized.

    pip install torch==2.11.0 bitsandbytes==0.50.2 transformers==5.23.0 accelerate safetensors numpy
    python verify/goldens/make/make_quantized.py --out verify/goldens/quantized

matrices.safetensors: NAME.value is a matrix; NAME.weight, NAME.weight.absmax, ... what bitsandbytes stores it as, under the names that it has in a model's files
(of int8 NAME.weight, NAME.SCB, NAME.weight_format); NAME.dequantised what that stands for, in the matrix's dtype, of int8 in float32.
Blocks and rows of zeros, values on the bounds between two codes and blocks that are not full are among them.

nf4/, fp4/ and int8/: a Qwen3 as transformers saves it with a BitsAndBytesConfig; log_probabilities.safetensors has tokens [2, 12] and what the
float64 model of the dequantised weights gives for tokens 1, 2, ... of each row [2, 11]. Matrices have whole blocks in each row: with others the
AVX-512 kernel of bitsandbytes 0.50 takes the maxima of other rows.
"""
import argparse
import sys
import tempfile
from pathlib import Path

import bitsandbytes
import torch
from bitsandbytes import functional
from safetensors.torch import save_file
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
from goldens.passes import InFloat64, load_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen3Config, Qwen3ForCausalLM

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def matrix(rows, columns, dtype, seed):
    """Normal numbers of scales that differ from row to row, the first 64 of them zeros."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(rows, columns, generator=generator)
    value *= torch.logspace(-3, 1, rows).unsqueeze(1)
    value.view(-1)[:64] = 0.0
    return value.to(dtype)


def on_bounds(quant_type):
    """A block whose values lie on the codes of the type, and halfway between neighbours."""
    codes = functional.get_4bit_type(quant_type, device="cpu").sort().values
    halves = (codes[:-1] + codes[1:]) / 2
    tiny = torch.tensor([0.0, -0.0, 1e-3, -1e-3, 5e-3, -5e-3])
    values = torch.cat([codes, halves, torch.nextafter(halves, torch.tensor(2.0)), torch.nextafter(halves, torch.tensor(-2.0)), tiny])
    return torch.nn.functional.pad(values, (0, 128 - values.numel())).view(2, 64)


def four_bits(tensors, name, value, quant_type, double):
    packed, state = functional.quantize_4bit(value, blocksize=64, compress_statistics=double, quant_type=quant_type)
    tensors[f"{name}.value"] = value
    tensors[f"{name}.weight"] = packed
    for part, tensor in state.as_dict(packed=True).items():
        tensors[f"{name}.weight.{part}"] = tensor
    tensors[f"{name}.dequantised"] = functional.dequantize_4bit(packed, state)


def eight_bits(tensors, name, value):
    packed, maxima, _ = functional.int8_vectorwise_quant(value.to(torch.float16))
    tensors[f"{name}.value"] = value
    tensors[f"{name}.weight"] = packed
    tensors[f"{name}.SCB"] = maxima
    tensors[f"{name}.weight_format"] = torch.tensor(0, dtype=torch.uint8)
    tensors[f"{name}.dequantised"] = functional.int8_vectorwise_dequant(packed, maxima)


def numbers_of(module):
    """The weight of a module in float64, dequantised where it is quantised."""
    weight = module.weight
    if getattr(weight, "quant_state", None) is not None:
        return functional.dequantize_4bit(weight.data, weight.quant_state).to(torch.float64)
    if weight.dtype == torch.int8:
        return functional.int8_vectorwise_dequant(weight.data, weight.SCB).to(torch.float64)
    return weight.data.to(torch.float64)


def small_model():
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=61, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         head_dim=16, tie_word_embeddings=False)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.normal_(0, 0.15)
    return model


def folders(out):
    settings = {"nf4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                          bnb_4bit_compute_dtype=torch.bfloat16),
                "fp4": BitsAndBytesConfig(load_in_4bit=True),
                "int8": BitsAndBytesConfig(load_in_8bit=True)}
    tokens = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(1))
    for name, setting in settings.items():
        with tempfile.TemporaryDirectory() as plain:
            small_model().save_pretrained(plain)
            model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=setting, device_map="cpu", dtype=torch.bfloat16)
        model.save_pretrained(out / name)
        (out / name / "generation_config.json").unlink(missing_ok=True)
        weights = {f"{path}.weight": numbers_of(module) for path, module in model.named_modules() if hasattr(module, "weight")}
        with tempfile.TemporaryDirectory() as plain:
            truth = small_model().to(torch.float64)
            truth.load_state_dict(weights, strict=True)
            truth.save_pretrained(plain)
            with InFloat64():
                truth = load_model(Path(plain))
        with torch.no_grad(), InFloat64():
            log_probabilities = truth(input_ids=tokens).logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None]).squeeze(2)
        save_file({"input_ids": tokens, "log_probabilities": log_probabilities.contiguous()}, out / name / "log_probabilities.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    tensors = {}
    for number, (dtype_name, dtype) in enumerate(DTYPES.items()):
        for quant_type in ("nf4", "fp4"):
            for double in (False, True):
                name = f"{quant_type}-{dtype_name}" + ("-double" if double else "")
                four_bits(tensors, name, matrix(7, 64, dtype, number), quant_type, double)
                four_bits(tensors, f"{name}-odd", matrix(9, 43, dtype, 10 + number), quant_type, double)
        eight_bits(tensors, f"int8-{dtype_name}", matrix(5, 96, dtype, 20 + number))
    for quant_type in ("nf4", "fp4"):
        four_bits(tensors, f"{quant_type}-bounds", on_bounds(quant_type), quant_type, False)
    # More than one block of maxima.
    four_bits(tensors, "nf4-long-double", matrix(37, 512, torch.bfloat16, 30), "nf4", True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "matrices.safetensors",
              metadata={"bitsandbytes": bitsandbytes.__version__, "torch": torch.__version__})
    folders(out)
    print(f"{out}: {len(tensors)} tensors by bitsandbytes {bitsandbytes.__version__}")


if __name__ == "__main__":
    main()
