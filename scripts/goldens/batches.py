"""Batches as trainers make them: packed rows, padding tokens that are real, padding beyond the rows, nothing but input_ids.

SFT cases, of models of the topic sft, of the set `public`, and of two whose configs have a pad_token_id.
"""

import json
from pathlib import Path

import torch

from goldens.checks import (
    CheckError,
    check_documents,
    check_finite_differences,
    check_picks,
    check_recurrence,
    check_results,
    check_routing,
    check_weights,
    picks,
)
from goldens.models import MODELS
from goldens.passes import IGNORED, ResultCheck, evaluate, experts_per_token, gradients_of, load_model, read_tensors, relative_difference, worst
from goldens.recurrence import has_gates, has_recurrence, is_packed
from goldens.sft_case import describe, expected_numbers
from goldens.specs import COMMON, Model, rope
from goldens.writing import FIRST_TOKEN, save_case, write_model

PUBLISHED = Path(__file__).resolve().parents[2] / "verify" / "goldens" / "models"  # of the models not made here

SMALL = {**COMMON, "vocab_size": 37, "hidden_size": 16, "intermediate_size": 10, "num_hidden_layers": 2, "head_dim": 6}

# The end of a text is what rows are padded with, and -1 is what some published configs hold: the last token.
PADDED_MODELS = {
    "llama-pad": Model("llama", seed=111, settings={**SMALL, "pad_token_id": 2, "rope_parameters": rope(1000.0)}),
    "qwen3-pad": Model(
        "qwen3",
        seed=112,
        settings={
            **SMALL,
            "pad_token_id": -1,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "rope_parameters": rope(1000.0),
        },
    ),
}


def packed(rows, across=()):
    """Rows of documents, each (first position, tokens). A document's first label is scored only in rows of `across`."""

    def make(vocab_size, generator):
        position_ids = torch.stack(
            [torch.cat([torch.arange(first, first + length) for first, length in row]) for row in rows]
        )
        input_ids = torch.randint(FIRST_TOKEN, vocab_size, position_ids.shape, generator=generator)
        labels = input_ids.clone()
        for row, documents in enumerate(rows):
            column = 0
            for _, length in documents:
                if row not in across:
                    labels[row, column] = IGNORED
                column += length
        return {"input_ids": input_ids, "position_ids": position_ids, "labels": labels}

    return make


def padding_free(lengths, pad_to_multiple_of):
    """What TRL's own collator makes of rows of these lengths."""

    def make(vocab_size, generator):
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        collator = DataCollatorForLanguageModeling(
            pad_token_id=0, padding_free=True, pad_to_multiple_of=pad_to_multiple_of
        )
        rows = [torch.randint(FIRST_TOKEN, vocab_size, (length,), generator=generator) for length in lengths]
        inputs = collator([{"input_ids": row.tolist()} for row in rows])
        return {name: torch.as_tensor(value) for name, value in inputs.items()}

    return make


def padded(lengths, columns, side="right", positions=None, real=(), mask=True):
    """Rows padded to more columns than the longest has, if any. `real` (row, index, token): tokens to put in the text.

    Without `positions`, or a mask, the inputs have none. "columns" numbers the columns, "cumsum" the real tokens of a
    row, with 1 for its padding, as transformers' generate() does.
    """

    def make(vocab_size, generator):
        shape = (len(lengths), columns)
        inputs = {
            "input_ids": torch.zeros(shape, dtype=torch.int64),
            "attention_mask": torch.zeros(shape, dtype=torch.int64),
            "labels": torch.full(shape, IGNORED),
        }
        for row, length in enumerate(lengths):
            first = columns - length if side == "left" else 0
            span = slice(first, first + length)
            tokens = torch.randint(FIRST_TOKEN, vocab_size - 1, (length,), generator=generator)
            for of_row, at, token in real:
                if of_row == row:
                    tokens[at] = token
            inputs["input_ids"][row, span] = tokens
            inputs["attention_mask"][row, span] = 1
            inputs["labels"][row, span] = tokens
            inputs["labels"][row, first] = IGNORED
        if positions == "columns":
            inputs["position_ids"] = torch.arange(columns).repeat(len(lengths), 1)
        elif positions == "cumsum":
            of_real = inputs["attention_mask"].cumsum(-1) - 1
            inputs["position_ids"] = of_real.masked_fill(inputs["attention_mask"] == 0, 1)
        if not mask:
            del inputs["attention_mask"]
        return inputs

    return make


TWO_ROWS = [[(0, 7), (0, 1), (0, 12)], [(0, 9), (0, 11)]]
# Positions that go on after a jump, and a row's that start anywhere; labels across documents in the first row.
JUMPS = [[(0, 6), (9, 8), (0, 1), (2, 4)], [(5, 10), (5, 9)]]
# Documents longer than a recurrence's blocks of 64, and shorter than its convolution's kernel.
LONG_ROWS = [[(0, 70), (0, 1), (0, 15)], [(0, 2), (0, 3), (0, 81)]]
SHORT_ROWS = [[(0, 10), (0, 12)], [(0, 16), (0, 6)]]

# Under the name of the case: the model, and its inputs. phi3 and llama-dynamic rotate otherwise from 17 positions on.
CASES = {
    "llama-pad-sft-packed": ("llama-pad", packed(TWO_ROWS)),
    "llama-pad-sft-packed_jumps": ("llama-pad", packed(JUMPS, across=(0,))),
    "qwen2-window-sft-packed": ("qwen2-window", packed(TWO_ROWS)),
    "gemma3-sft-packed": ("gemma3", packed([[(0, 13), (0, 14)]])),
    "phi3-sft-packed_short": ("phi3", packed(SHORT_ROWS)),
    "qwen3-moe-aux-sft-padding_free": ("qwen3-moe-aux", padding_free((9, 1, 12), 8)),
    "phi3-sft-b2_over": ("phi3", padded((12, 9), 20, positions="columns")),
    "phi3-sft-b2_over_left_bare": ("phi3", padded((12, 9), 20, side="left")),
    "phi3-sft-b2_over_cumsum": ("phi3", padded((12, 9), 20, side="left", positions="cumsum")),
    "llama-dynamic-sft-b2_over_bare": ("llama-dynamic", padded((12, 9), 20)),
    "llama-pad-sft-real_pad": ("llama-pad", padded((14, 9), 17, real=((0, 6, 2), (0, 13, 2), (1, 8, 2)))),
    "qwen3-pad-sft-real_pad": ("qwen3-pad", padded((14, 9), 14, side="left", real=((0, 6, 36), (1, 0, 36)))),
    "gemma2-sft-real_pad_bare": ("gemma2", padded((12, 12), 12, real=((0, 5, 0), (1, 11, 0)), mask=False)),
    "llama-pad-sft-bare": ("llama-pad", padded((15, 15), 15, mask=False)),
    "gemma-sft-real_pad_bare": ("gemma", padded((12, 12), 12, real=((0, 5, 0), (1, 11, 0)), mask=False)),
    "smollm3-window-sft-packed": ("smollm3-window", packed(TWO_ROWS)),
    "olmo3-sft-packed_jumps": ("olmo3", packed(JUMPS)),
    # The query's scale follows positions: 6 to 16 and 5 to 14 of the documents cross 8, padding's own are 1.
    "ministral3-sft-packed_jumps": ("ministral3", packed(JUMPS)),
    "ministral3-window-sft-b2_over_cumsum": ("ministral3-window", padded((12, 9), 20, side="left", positions="cumsum")),
    "gpt-oss-sft-packed": ("gpt-oss", packed(TWO_ROWS)),
    "exaone4-sft-packed": ("exaone4", packed(TWO_ROWS)),
    "cohere2-sft-packed": ("cohere2", packed(TWO_ROWS)),
    "qwen3-5-sft-packed_long": ("qwen3-5", packed(LONG_ROWS)),
    "qwen3-5-conv2-sft-packed_jumps": ("qwen3-5-conv2", packed(JUMPS, across=(0,))),
    "qwen3-next-sft-packed": ("qwen3-next", packed(TWO_ROWS)),
    "qwen3-5-moe-sft-packed": ("qwen3-5-moe", packed(TWO_ROWS)),
    "granite-hybrid-sft-packed_long": ("granite-hybrid", packed(LONG_ROWS)),
    "bamba-sft-packed_long": ("bamba", packed(LONG_ROWS)),
    "nemotron-h-sft-packed_long": ("nemotron-h", packed(LONG_ROWS)),
    "granite-hybrid-groups-sft-packed_jumps": ("granite-hybrid-groups", packed(JUMPS, across=(0,))),
    "lfm2-sft-packed_jumps": ("lfm2", packed(JUMPS, across=(0,))),
    "lfm3-sft-packed": ("lfm3", packed(TWO_ROWS)),
    "lfm3-plain-sft-packed_jumps": ("lfm3-plain", packed(JUMPS, across=(0,))),
    "muse-spark-sft-packed": ("muse-spark", packed(TWO_ROWS)),
    "lfm2-moe-sft-packed": ("lfm2-moe", packed(TWO_ROWS)),
    "falcon-h1-sft-packed_long": ("falcon-h1", packed(LONG_ROWS)),
    "falcon-h1-norm-sft-packed_jumps": ("falcon-h1-norm", packed(JUMPS, across=(0,))),
    "deepseek-v3-sft-packed": ("deepseek-v3", packed(TWO_ROWS)),
    "deepseek-v32-sft-packed": ("deepseek-v32", packed(TWO_ROWS)),
    "glm-moe-dsa-sft-packed": ("glm-moe-dsa", packed(TWO_ROWS)),
    "gemma4-sft-packed": ("gemma4", packed(TWO_ROWS)),
    "gemma4-per-layer-sft-packed": ("gemma4-per-layer", packed(TWO_ROWS)),
    "gemma4-per-layer-sft-real_pad_bare": ("gemma4-per-layer", padded((12, 12), 12, real=((0, 5, 0), (1, 11, 0)), mask=False)),
    # Without position_ids a position is a column, padding counted.
    "ministral3-sft-b2_left_bare": ("ministral3", padded((12, 9), 20, side="left")),
    "kimi-linear-sft-packed_long": ("kimi-linear", packed(LONG_ROWS)),
    "step3p7-sft-packed": ("step3p7", packed(TWO_ROWS)),
    "kimi-linear-listed-sft-packed_jumps": ("kimi-linear-listed", packed(JUMPS, across=(0,))),
    "hy-v4-sft-packed": ("hy-v4", packed(TWO_ROWS)),
    "zamba2-sft-packed": ("zamba2", packed(TWO_ROWS)),
    "zamba2-plain-sft-packed_jumps": ("zamba2-plain", packed(JUMPS, across=(0,))),
    "zamba2-plain-sft-real_pad_bare": ("zamba2-plain", padded((12, 12), 12, real=((0, 5, 0), (1, 11, 0)), mask=False)),
    "deepseek-v4-sft-packed": ("deepseek-v4", packed(TWO_ROWS)),
    "mistral-large4-sft-packed": ("mistral-large4", packed(TWO_ROWS)),
    "mistral-large4-shared-sft-packed": ("mistral-large4-shared", packed(TWO_ROWS)),
    "minimax-m3-sft-packed": ("minimax-m3", packed(TWO_ROWS)),
    "glm5-next-sft-packed": ("glm5-next", packed(TWO_ROWS)),
    "qwen4-exp-sft-packed": ("qwen4-exp", packed(TWO_ROWS)),
    "qwen4-exp-pairs-sft-packed_jumps": ("qwen4-exp-pairs", packed(JUMPS, across=(0,))),
    "mistral4-sft-packed_jumps": ("mistral4", packed(JUMPS)),
    "mistral4-sft-b2_left_bare": ("mistral4", padded((12, 9), 20, side="left")),
    "glm5-next-listed-sft-packed_jumps": ("glm5-next-listed", packed(JUMPS, across=(0,))),
}


def embeddings_of(model):
    """By the names of their weights, all that are looked up by tokens: Gemma 4 may have a second table."""
    modules = {f"{name}.weight": module for name, module in model.named_modules()}
    return {name: module for name, module in modules.items() if isinstance(module, torch.nn.Embedding)}


def check_padding_index(model, inputs, tensors):
    """The embedding of the padding token learns from the head alone, all others as without padding_idx.

    Returns the derivatives of the loss, which its gradients are not, and what case.json says of them.
    """
    embedding = model.get_input_embeddings()
    token = embedding.padding_idx
    gradients = gradients_of(tensors)
    if token is None:
        return gradients, {}
    tables = embeddings_of(model)
    for table in tables.values():
        table.padding_idx = None
    derivatives = gradients_of(evaluate(model, inputs)[1])
    for table in tables.values():
        table.padding_idx = token

    others = {key: value for key, value in inputs.items() if key != "input_ids"}
    model.zero_grad(set_to_none=True)
    # Gemma's embedding is scaled where it is looked up, so it is taken as the module gives it.
    model(inputs_embeds=embedding(inputs["input_ids"]).detach(), **others, use_cache=False).loss.backward()
    is_real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])) == 1
    has_real = (inputs["input_ids"] == token)[is_real].any()
    found = []
    for name, table in tables.items():
        of_head = table.weight.grad if table is embedding else None
        expected = derivatives[name].clone()
        expected[token] = 0.0 if of_head is None else of_head[token]
        error = relative_difference(gradients[name], expected)
        through_input = (derivatives[name][token] - expected[token]).abs().max().item()
        if not error <= 1e-14:
            raise CheckError(f"the gradient of {name} is {error} off")
        if has_real and not through_input > 1e-4:
            raise CheckError(f"token {token} is real, and padding_idx changes its gradient in {name} by {through_input}")
        found.append((through_input, error))
    left_out, errors = zip(*found, strict=True)
    return derivatives, {"padding_idx": token, "left_out_of_its_gradient": min(left_out), "relative_error": worst(errors)}


def write_case(root, name, seed):
    model_name, make = CASES[name]
    folder = root / "models" / model_name
    spec = MODELS.get(model_name) or PADDED_MODELS.get(model_name)
    if spec is None:
        folder = PUBLISHED / model_name
    elif not folder.exists():
        write_model(folder, spec)
    generator = torch.Generator().manual_seed(seed)
    config = json.loads((folder / "config.json").read_text())
    inputs = make(config["vocab_size"], generator)
    with ResultCheck() as results:
        model = load_model(folder)
        outputs, tensors = evaluate(model, inputs)
    variant = name.partition("-sft-")[2]
    given = [key for key in ("attention_mask", "position_ids") if key in inputs]
    case = describe(
        name,
        model_name,
        config["model_type"],
        variant,
        padding="see attention_mask" if "attention_mask" in inputs else "none",
        position_ids="see position_ids" if "position_ids" in inputs else "none given",
    )
    if config["model_type"] == "gpt_oss":
        case["source"]["masks"] = "transformers' masking_utils, given the position_ids that GptOssModel leaves out"
    if "cu_seq_lens_q" in inputs:
        case["source"]["inputs"] = "TRL 1.16.0: trainer/sft_trainer.py DataCollatorForLanguageModeling(padding_free=True)"
    case["expected"] = expected_numbers(model, inputs, outputs, tensors)
    derivatives, of_padding = check_padding_index(model, inputs, tensors)
    case["checks"] = {
        **check_results(results),
        **check_weights(model, tensors, read_tensors(folder / "model.safetensors")),
        **of_padding,
        **({"documents_alone": check_documents(model, inputs, tensors)} if is_packed(inputs) else {}),
        "finite_difference": check_finite_differences(model, inputs, derivatives, generator),
    }
    if has_gates(model):
        case["checks"]["token_by_token"] = check_recurrence(model, inputs, tensors)
    if has_recurrence(model):
        case["source"]["recurrence"] = "each document on its own through transformers' module"
    if experts_per_token(model.config):
        case["checks"]["routing"] = check_routing(model, inputs, tensors)
    if picks(model.config):
        case["checks"]["picks"] = check_picks(model, inputs)
    save_case(root, case, tensors)
    print(f"  given {', '.join(given) or 'input_ids alone'}")


def make_batches(root, names):
    """DIR/cases/<model>-sft-<batch> of CASES, or those of the models `names`, and the models that this project makes."""
    for i, name in enumerate(CASES):
        if names and CASES[name][0] not in names:
            continue
        try:
            write_case(root, name, 110_000 + i)
        except CheckError as error:
            raise CheckError(f"{name}: {error}") from None
