#!/usr/bin/env python3
"""How exact gradients are of tokens that a model is sure of: this project's, transformers', TRL's and torch's, in float32.

    python3 scripts/pages/confident_tokens.py [--out results/confident-tokens]

A small random Qwen3 whose head is large, so that the best word leads the others together by up to some 24 nats. Of rows of 512 tokens
those are scored, on that best word, whose lead lies in a band. Where a target leads, the gradient of its logit is p - 1, of which a float32
softmax keeps no digits beyond 16 nats ("softmax collapse", arXiv 2610.31642). The truth is transformers' own model in float64 with its casts
to float32 lifted, by the log-odds z of the target against all other words: loss = softplus(-z).

Writes results.jsonl, a record for each band and code, and confident-tokens.md. Exit codes: 0 the project's own are within a limit of the
truth in every band, 1 they are not, 2 bad usage or input.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from python_environment import ROOT, InputError, enter_venv
from files import Parser, run, write_file
from machine import environment

BANDS = ((0, 3), (8, 11), (12, 16), (15, 19), (18, 22))  # nats
ROWS, COLUMNS, SEEDS = 4, 512, 5
OURS = ("streambp.backward, standard", "streambp.backward, streambp", "streambp.patch")
LIMIT = 1e-4  # of ours: the rounding of logits of 40, 2e-6, through two layers
PAGE = """# Confident tokens in float32

How far the gradients of tokens that a model is sure of are from the float64 truth: the worst parameter's relative error, the median of
{seeds} seeds, by the lead of the scored words over all others together. A small Qwen3 with random weights, loss the mean cross-entropy. {machine},
commit {commit}; transformers {transformers}, TRL {trl}, torch {torch}. Made by `scripts/pages/confident_tokens.py`.

| {header} |
|---|{rules}
{rows}

A float32 softmax has 1 - p only to 6e-8: where a target leads by 16 nats and more, nothing of it is left, and gradients are noise or 0. Ours
has the others' sum without the target, log p = -log1p(e^-z) and 1 - p = 1 / (1 + e^z) ([the kernels](../../streambp/ops/cpu/log_odds.h)).
"""


def sharp_model(torch, transformers, seed):
    """A Qwen3 whose best words lead by some nats to some tens of them."""
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(vocab_size=509, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, tie_word_embeddings=False,
                                      use_cache=False, pad_token_id=None)
    model = transformers.Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1)
        model.lm_head.weight.normal_(0, 1.6)
    return model.train()


def lifted(torch, model, batch, loss_of):
    """Loss and gradients of a copy of `model` in float64 throughout."""
    from goldens.passes import InFloat64

    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64():
            twin = type(model)(model.config).double().train()
            twin.load_state_dict({name: tensor.double() for name, tensor in model.state_dict().items()})
            loss_of(twin(input_ids=batch["input_ids"]).logits).backward()
    finally:
        torch.set_default_dtype(torch.float32)
    return gradients_of(twin)


def gradients_of(model):
    found = {name: parameter.grad.double() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def odds(torch, logits):
    """(best words, their log-odds against all others) of logits [..., V]."""
    best = logits.argmax(-1, keepdim=True)
    others = logits.scatter(-1, best, -math.inf).logsumexp(-1)
    return best.squeeze(-1), logits.gather(-1, best).squeeze(-1) - others


def by_transformers(torch, model, batch):
    model(**batch, use_cache=False).loss.backward()
    return gradients_of(model)


def by_torch(torch, model, batch):
    logits = model(input_ids=batch["input_ids"]).logits
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()).backward()
    return gradients_of(model)


def by_trl(torch, model, batch):
    from trl.trainer.utils import add_fused_lm_head

    own = model.forward
    add_fused_lm_head(model)
    try:
        model(**batch, fused_lm_head=True).loss.backward()
    finally:
        model.forward = own
        del model.forward
    return gradients_of(model)


def by_backward(method):
    def gradients(torch, model, batch):
        import streambp_bench as sb

        sb.backward(model, batch, method=method, **({} if method == "standard" else {"chunk": 100}))
        return gradients_of(model)

    return gradients


def by_patch(torch, model, batch):
    import streambp_bench as sb

    sb.patch(model, chunk=100)
    try:
        return by_transformers(torch, model, batch)
    finally:
        sb.unpatch(model)


CODES = {"transformers, ForCausalLMLoss": by_transformers, "torch, cross_entropy": by_torch, "TRL, fused head": by_trl,
         OURS[0]: by_backward("standard"), OURS[1]: by_backward("streambp"), OURS[2]: by_patch}


def measure(torch, transformers):
    """{(band, code): [worst parameter's error of each seed]}, and how many tokens were scored in each band."""
    errors, scored = {}, {}
    for seed in range(SEEDS):
        model = sharp_model(torch, transformers, seed)
        ids = torch.randint(0, model.config.vocab_size, (ROWS, COLUMNS), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            best, lead = odds(torch, model.double()(input_ids=ids).logits)
        model = model.float()
        for low, high in BANDS:
            chosen = (lead[:, :-1] >= low) & (lead[:, :-1] <= high)
            scored[low, high] = scored.get((low, high), 0) + int(chosen.sum())
            labels = torch.full_like(ids, -100)
            labels[:, 1:] = torch.where(chosen, best[:, :-1], -100)
            batch = {"input_ids": ids, "labels": labels}

            def true_loss(logits, chosen=chosen, best=best):
                at = logits[:, :-1][chosen]
                target = best[:, :-1][chosen].unsqueeze(1)
                others = at.scatter(1, target, -math.inf).logsumexp(1)
                return torch.nn.functional.softplus(others - at.gather(1, target).squeeze(1)).mean()

            truth = lifted(torch, model, batch, true_loss)
            for name, code in CODES.items():
                found = code(torch, model, batch)
                worst = max(((found[key] - truth[key]).norm() / truth[key].norm()).item() for key in truth)
                errors.setdefault((low, high, name), []).append(worst)
    return errors, scored


def page(records):
    made = records[0]["environment"]
    names = list(dict.fromkeys(record["code"] for record in records))
    bands = list(dict.fromkeys((record["least_nats"], record["most_nats"]) for record in records))
    of = {(record["code"], record["least_nats"], record["most_nats"]): record for record in records}
    rows = [f"| {name} | " + " | ".join(f"{of[name, *band]['worst_error']:.1e}" for band in bands) + " |" for name in names]
    return PAGE.format(seeds=SEEDS, machine=made["cpu"], commit=made["commit"][:12] + (", modified" if made["modified"] else ""),
                       transformers=made["transformers"], trl=made["trl"], torch=made["torch"], rows="\n".join(rows), rules="---:|" * len(bands),
                       header=" | ".join(["lead of the target, nats", *(f"{low} to {high}" for low, high in bands)]))


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results/confident-tokens", help="folder of records and page")
    options = parser.parse_args()
    library = ROOT / "build/release/lib/libstreambp_torch.so"
    if not library.is_file():
        raise InputError(f"{library}: no such file; scripts/test.sh builds it")
    enter_venv()
    os.environ.setdefault("STREAMBP_TORCH_LIBRARY", str(library))
    sys.path[:0] = [str(ROOT / "streambp/python"), str(ROOT / "scripts")]
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    errors, scored = measure(torch, transformers)
    made = environment("torch", "transformers", "trl")
    records = [{"kind": "confident-tokens", "code": name, "least_nats": low, "most_nats": high, "scored_tokens": scored[low, high],
                "worst_errors": each, "worst_error": sorted(each)[len(each) // 2], "environment": made}
               for (low, high, name), each in sorted(errors.items(), key=lambda item: (list(CODES).index(item[0][2]), item[0]))]
    options.out.mkdir(parents=True, exist_ok=True)
    write_file(options.out / "results.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    write_file(options.out / "confident-tokens.md", page(records))
    print(page(records))
    failed = [record for record in records if record["code"] in OURS and not max(record["worst_errors"]) <= LIMIT]
    for record in failed:
        print(f"{record['code']}, {record['least_nats']} to {record['most_nats']} nats: {max(record['worst_errors']):.1e}, limit {LIMIT:.0e}")
    return 1 if failed else 0


if __name__ == "__main__":
    run(main)
