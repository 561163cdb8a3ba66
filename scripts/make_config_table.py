#!/usr/bin/env python3
"""What transformers makes of some hundred random config.json files: verify/tests/streambp/model/config/config_table.jsonl.

    python scripts/make_config_table.py --out verify/tests/streambp/model/config/config_table.jsonl

A second source in addition to our own parser, which the reference's numbers also come through: each file is given to
transformers, the model is made, and what it holds or does is written down: windows are counted in the attention
weights of a forward pass, which layers rotate and how is seen in their keys, the scales of embedding, queries and logits in
what they multiply, names and shapes are those that the model is saved with. A line is
{"config": the file, "derived": the values}, verify/tests/streambp/model/config/config_table_test.cc reads them. A file that transformers itself
refuses is drawn again. Needs torch 2.11.0 and transformers 5.23.0.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers

from config_table.families import FAMILIES, draw_file
from config_table.measure import OtherRotationError, derive
from goldens.passes import InFloat64

FILES_OF_A_FAMILY = 24


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="this one alone, for a look; may be repeated")
    parser.add_argument("--files", type=int, default=FILES_OF_A_FAMILY, metavar="N", help="of each family (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    lines, refused = [], 0
    with InFloat64():
        for family in arguments.family or FAMILIES:
            made, number = 0, 0
            while made < arguments.files:
                settings = draw_file(family, number)
                number += 1
                try:
                    derived = derive(settings)
                except OtherRotationError:
                    raise
                except Exception as error:  # whatever transformers says of a file that it does not take
                    refused += 1
                    print(f"transformers refuses {family} {number - 1}: {type(error).__name__}: {str(error)[:150]}")
                    continue
                lines.append(json.dumps({"config": settings, "derived": derived}, separators=(",", ":")))
                made += 1
    arguments.out.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} files, {refused} that transformers refuses, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
