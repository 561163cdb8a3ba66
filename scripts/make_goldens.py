#!/usr/bin/env python3
"""Golden cases, made with Hugging Face's libraries in float64: losses and gradients of tiny random models.

    python scripts/make_goldens.py --out DIR                  writes DIR/models/<model> and DIR/cases/<case>, every topic
    python scripts/make_goldens.py --out DIR --topics sft     those of one topic
    python scripts/make_goldens.py --check DIR                computes the SFT cases of DIR again and prints the differences

Needs torch 2.11.0 and transformers 5.23.0, or for models that these lack torch 2.15.0 and transformers 5.24.0, safetensors 0.8.0 and numpy, the topic policy TRL 1.16.0 and verl 0.9.1 too.
verify/goldens/README.md says what the files hold, goldens/models/__init__.py which models there are. A case is written only if it passes every check of goldens/checks.py.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

try:
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"make_goldens.py: {error.name} is missing: verify/goldens/README.md says how to make an environment for it")
from files import Parser

from goldens.batches import make_batches
from goldens.checks import (
    CheckError,
    check_documents,
    check_finite_differences,
    check_legacy_config,
    check_padding,
    check_picks,
    check_recurrence,
    check_results,
    check_routing,
    check_weights,
    picks,
)
from goldens.models import MODELS
from goldens.passes import (
    InFloat64,
    ResultCheck,
    evaluate,
    experts_per_token,
    gradients_of,
    load_model,
    read_tensors,
    relative_difference,
    worst,
)
from goldens.blocks import has_blocks
from goldens.recurrence import has_gates, has_recurrence
from goldens.sft_case import describe, expected_numbers
from goldens.versions import unexpected
from goldens.writing import make_inputs, save_case, write_model


class InputError(Exception):
    """Bad input: the message is one line for the user."""


def make_case(root, model_name, batch_name, seed):
    spec = MODELS[model_name]
    name = f"{model_name}-sft-{batch_name}"
    folder = root / "models" / model_name
    generator = torch.Generator().manual_seed(seed)
    inputs = make_inputs(spec.batches[batch_name], spec.settings["vocab_size"], generator)
    with ResultCheck() as results:
        model = load_model(folder)
        outputs, tensors = evaluate(model, inputs)
    padding = spec.batches[batch_name].padding
    case = describe(name, model_name, spec.model_type, batch_name, padding=padding, position_ids="arange")
    case["expected"] = expected_numbers(model, inputs, outputs, tensors)
    case["checks"] = {
        **check_results(results),
        **check_weights(model, tensors, read_tensors(folder / "model.safetensors")),
        "finite_difference": check_finite_differences(model, inputs, gradients_of(tensors), generator),
    }
    if spec.legacy is not None:
        case["checks"]["legacy_config"] = check_legacy_config(folder, inputs, tensors)
    if not inputs["attention_mask"].all():
        case["checks"]["other_pad_tokens"] = check_padding(model, inputs, tensors)
    if has_gates(model):
        case["checks"]["token_by_token"] = check_recurrence(model, inputs, tensors)
    if has_recurrence(model) or has_blocks(model):
        case["checks"]["rows_without_padding"] = check_documents(model, inputs, tensors)
    if experts_per_token(model.config):
        case["checks"]["routing"] = check_routing(model, inputs, tensors)
    if picks(model.config):
        case["checks"]["picks"] = check_picks(model, inputs)
    embedding = model.get_input_embeddings()
    if hasattr(embedding, "embed_scale"):
        case["embed_scale"] = embedding.embed_scale.item()
    save_case(root, case, tensors)


def make_sft(root, names):
    """DIR/cases/<model>-sft-<batch> for the models of goldens/models/__init__.py."""
    for model_name in names or MODELS:
        spec = MODELS[model_name]
        write_model(root / "models" / model_name, spec)
        for i, batch_name in enumerate(spec.batches):
            try:
                make_case(root, model_name, batch_name, 1000 * spec.seed + i)
            except CheckError as error:
                raise InputError(f"{model_name}-sft-{batch_name}: {error}") from None


def of_module(name):
    """The topic of goldens/<name>.py, which is imported when it is made: it may need PEFT 0.21.2 or TRL 1.16.0."""
    return lambda root, names: importlib.import_module(f"goldens.{name}").make(root, names)


# What can be made, each by a function of the folder and the models' names, None for all.
TOPICS = {
    "sft": make_sft,
    "batches": make_batches,
    "policy": of_module("policy"),
    "preference": of_module("preference"),
    "teacher": of_module("teacher"),
    "adapters": of_module("adapters"),
    "replay": of_module("replay"),
    "picks": of_module("picks"),
}


def check(root, limit):
    """Every SFT case of a set, computed again. Returns whether all are within `limit`."""
    cases = []
    for path in sorted((root / "cases").glob("*/case.json")):
        case = json.loads(path.read_text())
        is_plain = case["objective"] == "sft" and "loss_type" not in case["hyperparameters"]
        if is_plain and case["finetuning"] == "full":
            cases.append((path.parent, case))
    if not cases:
        raise InputError(f"{root}: no SFT case in it")
    passed = True
    for folder, case in cases:
        expected = read_tensors(folder / "tensors.safetensors")
        inputs = {name[len("in.") :]: tensor for name, tensor in expected.items() if name.startswith("in.")}
        computed = evaluate(load_model(root / case["model"]), inputs)[1]
        if computed.keys() != expected.keys():
            raise InputError(f"{folder.name}: holds other tensors than those computed")
        errors = {name: relative_difference(computed[name], expected[name]) for name in expected}
        error = worst(errors.values())
        is_within = error <= limit
        passed = passed and is_within
        print(f"{folder.name}: {error:.1e}{'' if is_within else ' FAILED'}")
    return passed


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    job = parser.add_mutually_exclusive_group(required=True)
    job.add_argument("--out", type=Path, metavar="DIR", help="write models/ and cases/ in DIR")
    job.add_argument("--check", type=Path, metavar="DIR", help="compute the SFT cases of DIR again")
    parser.add_argument("--topics", default=",".join(TOPICS), metavar="NAMES", help="topics to make, by commas")
    parser.add_argument("--only", metavar="NAMES", help="models to make, by commas")
    parser.add_argument("--limit", type=float, default=1e-12, help="of --check: relative to a tensor's largest entry")
    arguments = parser.parse_args()
    names = arguments.only and arguments.only.split(",")
    unknown = [name for name in names or () if name not in MODELS]
    if unknown:
        raise InputError(f"--only {','.join(unknown)}: expected some of {', '.join(MODELS)}")
    topics = arguments.topics.split(",")
    if any(topic not in TOPICS for topic in topics):
        raise InputError(f"--topics {arguments.topics}: expected some of {', '.join(TOPICS)}")
    if unexpected("torch", "transformers"):
        raise InputError(unexpected("torch", "transformers"))
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with InFloat64():
        if arguments.check:
            return 0 if check(arguments.check, arguments.limit) else 1
        for topic in topics:
            TOPICS[topic](arguments.out, names)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (InputError, CheckError) as error:
        sys.exit(f"make_goldens: {error}")
