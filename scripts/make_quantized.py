#!/usr/bin/env python3
"""Writes what bitsandbytes makes of small matrices on the CPU: verify/goldens/quantized.

    pip install torch==2.11.0 bitsandbytes==0.50.2 safetensors numpy
    python scripts/make_quantized.py --out verify/goldens/quantized

NAME.value is a matrix; NAME.weight, NAME.weight.absmax, ... what bitsandbytes stores it as, under the names that it has in a model's files
(of int8 NAME.weight, NAME.SCB, NAME.weight_format); NAME.dequantised what that stands for, in the matrix's dtype, of int8 in float32.
Blocks and rows of zeros, values on the bounds between two codes and blocks that are not full are among them.
"""
import argparse
from pathlib import Path

import bitsandbytes
import torch
from bitsandbytes import functional
from safetensors.torch import save_file

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
    print(f"{out}: {len(tensors)} tensors by bitsandbytes {bitsandbytes.__version__}")


if __name__ == "__main__":
    main()
