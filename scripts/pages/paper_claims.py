#!/usr/bin/env python3
"""Does the paper hold? What StreamBP (arXiv 2506.03077) claims, next to what this project's records and predictions say.

    scripts/pages/paper_claims.py [--out results/paper]            asks streambp-bench for the predictions that no record has, and writes the page
    scripts/pages/paper_claims.py --page [--out results/paper]     the page alone, from the records that are there
    scripts/pages/paper_claims.py --check [--out results/paper]    exit code 1 where the page says anything else than the records that are there

Writes claims.jsonl, the predictions with their environment, and README.md. The other figures are those of the folders that each row names.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from files import Parser, parse_record, read_text, run, write_file
from machine import ROOT, bench_program, environment, made_by
from provenance import environments, machine_of
from readme_figures import LENGTHS, Comparison, quotient

RESULTS = ROOT / "results"
BUDGET = "78GiB"  # what the paper's curves leave of its card for tensors
MODEL = ["--model", "qwen3-8b", "--dtype", "bfloat16"]
LENGTH = 20000  # the longest at which the paper's curve of checkpointing has a point
METHODS = ("checkpoint", "streambp")
OBJECTIVES = {"sft": [], "dpo": ["--objective", "dpo", "--lora-rank", "32"], "grpo": ["--objective", "grpo", "--lora-rank", "32"]}

PAGE = """# Does the paper hold?

What StreamBP (arXiv 2506.03077) claims, one line a claim. *Holds*: in this project's engine, as stated. *Only against ...*: the gain is what the
named baseline leaves out, and a baseline that has it takes the gain away. Memory is predicted by dry runs, which agree with an H200's allocator
([table](../prediction/table.md), [GPU](../cuda/README.md)); seconds are measured: medians of ratios by round and their range. The last two lines are of [the authors' own code](../authors-code/README.md), on a CPU.

{verdicts}

| claim | | here | against what, and why | from |
|---|---|---|---|---|
{rows}

The tables of the paper, cell by cell: [paper.md](paper.md). "Less memory than published" there says that this engine needs less, not that the
published figure is wrong; it is reproduced only where the two are within 8 %: {reproduced} of table 3's cells of StreamBP are. Predictions of this page: {made} Made by `scripts/pages/paper_claims.py`.
"""


def lines_of(*where):
    path = RESULTS.joinpath(*where)
    return list(map(parse_record, read_text(path).splitlines()))


def between(numbers, digits=2, unit=""):
    low, high = min(numbers), max(numbers)
    texts = [f"{low:.{digits}f}", f"{high:.{digits}f}"]
    return (texts[0] if texts[0] == texts[1] else " to ".join(texts)) + unit


def predictions():
    """Records of max-length by objective, and of one pass of SFT, of checkpointing and streambp, with the head in full and streamed."""
    program = bench_program()
    made = environment(program=program)
    for objective, flags in OBJECTIVES.items():
        for method, head in (("checkpoint", "in full"), ("checkpoint", "streamed"), ("streambp", "streamed")):
            common = [*MODEL, *flags, "--method", method, "--head", "streamed" if head == "streamed" else "full", "--json"]
            commands = [["max-length", "--budget", BUDGET]]
            if objective == "sft":
                commands.append(["sweep", "--device", "meta", "--seq-len", str(LENGTH), "--quiet"])
            for command in commands:
                with tempfile.TemporaryDirectory() as folder:
                    out = ["--out", folder] if command[0] == "sweep" else []
                    done = subprocess.run([program, *command, *common, *out], stdout=subprocess.PIPE, text=True, check=True)
                record = json.loads(done.stdout.splitlines()[-1])
                names = ("kind", "model", "dtype", "method", "seq_len", "peak_bytes", "resident_bytes", "budget_bytes", "settings")
                yield {"asked": command[0], "objective": objective, "head": head, **{name: record[name] for name in names if name in record}, "environment": made}


class Cells:
    """results/paper/cells.csv."""

    def __init__(self, folder):
        self.rows = list(csv.DictReader(read_text(folder / "cells.csv").splitlines()))

    def ratios(self, method, run_as, to, to_run_as, sections=("SFT", "GRPO", "DPO")):
        """Of table 3, section by section and column by column, in the cells that the paper has of both: (ours, the paper's)."""
        def of(row, configuration):
            return {(each["section"], each["column"]): each for each in self.rows
                    if each["table"] == "3" and each["row"] == row and each["run_as"] == configuration and each["section"] in sections}

        pairs = [(above[key], below[key]) for above, below in [(of(method, run_as), of(to, to_run_as))] for key in above if key in below]
        return [[float(a[name]) / float(b[name]) for a, b in pairs if a["published"] and b["published"]] for name in ("predicted", "published")]


def length_claims(cells, asked):
    longest = {(record["objective"], record["method"], record["head"]): record["seq_len"] for record in asked if record["asked"] == "max-length"}

    def next_to(objective, head):
        return longest[objective, "streambp", "streamed"] / longest[objective, "checkpoint", head]

    ours, published = cells.ratios("streambp", "as here", "checkpoint", "as here", ("SFT",))
    verdict = "holds" if next_to("sft", "streamed") >= 2.8 else "only against logits in full"
    yield (f"sequences 2.8 to 5.5 x as long as with gradient checkpointing (SFT of table 3: {between(published, 1)})", verdict,
           f"{between(ours, 1)} x", f"checkpointing with all logits at once, as the paper's baseline. Qwen3-8B without an optimizer: {next_to('sft', 'in full'):.1f} x; "
           f"{next_to('sft', 'streamed'):.1f} x where the baseline's head is streamed too", "paper")
    ours, published = cells.ratios("streambp", "as here", "standard", "baseline hugging-face", ("SFT",))
    lean, _ = cells.ratios("streambp", "as here", "standard", "as here", ("SFT",))
    verdict = "holds" if min(lean) >= 23 else "only against Hugging Face's baseline" if min(ours) >= 23 else "contradicted"
    yield (f"23 to 36 x as long as with standard back-propagation (SFT of table 3: {between(published, 0)})", verdict, f"{between(ours, 0)} x",
           f"Hugging Face's, which holds logits and norms in float32 as well; {between(lean, 0)} x against own standard back-propagation, which needs less", "paper")
    for objective in ("DPO", "GRPO"):
        ours, published = cells.ratios("streambp", "as here", "checkpoint", "baseline trl", (objective,))
        streamed = next_to(objective.lower(), "streamed")
        verdict = "holds" if streamed >= min(published) else "only against logits in full" if min(ours) >= min(published) else "contradicted"
        yield (f"{objective}: {between(published, 1)} x the length of checkpointing", verdict, f"{between(ours, 1)} x",
               f"TRL's checkpointing as of the paper, with all logits of a sequence at once. Qwen3-8B with LoRA, without an optimizer: {streamed:.1f} x where the baseline's head is streamed too", "paper")


def memory_claim(asked):
    beyond = {(record["method"], record["head"]): record["peak_bytes"] - record["resident_bytes"] for record in asked if record["asked"] == "sweep"}
    full, streamed = (beyond["streambp", "streamed"] / beyond["checkpoint", head] for head in ("in full", "streamed"))
    verdict = "holds" if streamed <= 0.2 else "only against logits in full" if full <= 0.2 else "contradicted"
    yield ("activation memory about 20 % of checkpointing's", verdict, f"{100 * full:.0f} %",
           f"Qwen3-8B, {LENGTH:,} tokens, logits in full; {100 * streamed:.0f} % of checkpointing whose head is streamed: layer inputs are what is left of both", "paper")


def time_claims():
    found = {length: Comparison(f"compare-{length}") for length in LENGTHS}
    times = {length: one.ratios("streambp", "checkpoint") for length, one in found.items()}
    texts = [f"{length:,} tokens {statistics.median(times[length]):.2f} x ({one.interval('streambp', 'checkpoint')}, {len(times[length])} rounds)"
             for length, one in found.items()]
    passes = [record for record in lines_of("cuda", "speed", "results.jsonl") if record["seq_len"] == 8192]
    base = next(record["gpu_seconds"] for record in passes if record["method"] == "checkpoint")
    gpu = {8192 // record["settings"]["chunk"]: record["gpu_seconds"] for record in passes if record["method"] == "streambp"}
    on_gpu = "; ".join(f"in {chunks} chunk{'s' * (chunks > 1)} {quotient(each, base)}" for chunks, each in sorted(gpu.items()))
    verdict = "holds" if all(statistics.median(each) <= 1.05 for each in times.values()) and all(statistics.median(gpu[few]) <= 1.05 * statistics.median(base) for few in (1, 2)) else "contradicted"
    cpu = {}
    for record in lines_of("paper-times-cpu", "results.jsonl"):
        if record["batch"] == 1 and record["status"] == "ok" and record["method"] in METHODS and record["settings"].get("chunk") != "auto":
            cpu.setdefault(record["seq_len"], {})[record["method"]] = record["seconds"]
    thirds = [statistics.median(a / b for a, b in zip(of["streambp"], of["checkpoint"], strict=True)) for of in cpu.values()]
    yield ("back-propagation in comparable or less time than with checkpointing", verdict, "; ".join(texts),
           f"own checkpointing with causal attention, small Qwen3 on two cores, chunks as chosen; with the paper's chunk of a third, on one core, {between(thirds)} x by length (medians of 3); "
           f"Qwen3-8B on an H200, 8,192 tokens, 3 passes each: {on_gpu}", "compare-2048", "compare-4096", "compare-8192", "paper-times-cpu", "cuda/speed")
    cpu = [record for record in lines_of("paper-times-cpu", "results.jsonl") if record["status"] == "ok" and record["batch"] == 1 and record.get("hardware_flops")]
    work = {(record["method"], record["seq_len"]): record["hardware_flops"] for record in cpu}
    ratios = [flops / work["checkpoint", length] for (method, length), flops in work.items() if method == "streambp" and ("checkpoint", length) in work]
    verdict = "only against a baseline that computes all scores" if min(ratios) > 0.97 else "holds"
    yield ("work is saved, for masked attention scores are not computed", verdict, f"{between(ratios, 3)} x the operations",
           "own checkpointing, whose attention is causal as well and computes none of them either", "paper-times-cpu")
    batches = {}
    for record in lines_of("paper-times-cpu", "results.jsonl"):
        if record["seq_len"] == 1152 and record["status"] == "ok" and record["method"] in METHODS and record["settings"].get("chunk") in (None, "auto"):
            batches.setdefault(record["batch"], {})[record["method"]] = record["seconds"]
    found = {batch: sorted(a / b for a, b in zip(of["streambp"], of["checkpoint"], strict=True)) for batch, of in batches.items() if len(of) == 2}
    texts = [f"batch {batch}: {statistics.median(each):.2f} x ({each[0]:.2f} to {each[-1]:.2f}{', undecided' if round(each[0], 2) <= 1.0 <= round(each[-1], 2) else ''})"
             for batch, each in sorted(found.items())]
    verdict = "holds" if all(round(each[-1], 2) < 1.0 for each in found.values()) else "contradicted" if any(round(each[0], 2) > 1.0 for each in found.values()) else "holds where it is decided"
    yield ("the gain carries over to batches (table 2: 0.95, 0.96, 0.94 x the time at 1, 2, 4)", verdict, "; ".join(texts),
           f"own checkpointing, small Qwen3 on one core, {len(found[1])} rounds; undecided: the rounds lie on both sides of 1", "paper-times-cpu")


def rank_claims():
    records = {(record["method"], record["settings"]["head"], record["settings"]["ranks"]): record
               for name in ("ranks-zero2", "ranks-zero2/streamed-head") for record in lines_of(name, "results.jsonl")}
    cards = sorted({ranks for _, _, ranks in records})

    def next_to(head, measure):
        return [measure(records["streambp", "streamed", ranks]) / measure(records["checkpoint", head, ranks]) for ranks in cards]

    full, streamed = (next_to(head, lambda record: record["seq_len"]) for head in ("full", "streamed"))
    verdict = "holds" if min(streamed) >= 5 else "only against logits in full" if min(full) >= 5 else "contradicted"
    yield ("5 to 5.6 x the length of checkpointing under ZeRO-2, 3 to 8 cards", verdict, f"{between(full, 1)} x",
           f"own checkpointing with all logits at once, Qwen3-8B and AdamW, predicted; {between(streamed, 1)} x where its head is streamed too", "ranks-zero2")
    more = next_to("full", lambda record: sum(part["bytes"] for part in record["sent_by_pass"].values()))
    yield ("gradients are sent once a layer, not once a chunk", "holds" if max(more) <= 1.01 else "contradicted", f"{between(more, 3)} x the bytes of checkpointing",
           "ZeRO-2 on 3 to 8 ranks: a layer's sums are sent after its last chunk", "ranks-zero2")


def exactness_claims():
    sweep = next(record for record in lines_of("proofs", "results.jsonl") if record["proof"] == "sweep")
    figure = sweep["figures"][0]
    yield ("gradients are those of standard back-propagation", "holds" if figure["reached"] <= figure["limit"] else "contradicted",
           f"{figure['reached']:.1e} in float64", f"{figure['compared']:,} comparisons, every method, awkward sizes", "proofs")
    errors = lines_of("precision", "errors.jsonl")
    worst = {name: max(record["times_standard"] for record in errors if record["precision"] == name and record["method"] == "streambp")
             for name in ("float32", "mixed", "bfloat16")}
    few = max(record["times_standard"] for record in errors if record["precision"] == "bfloat16" and record["method"] == "streambp"
              and max(record["chunks"], record["head_chunks"]) <= 8)
    yield ("the error of low precision is standard's own (table 6: 1.03 x in bfloat16)", "holds" if worst["mixed"] <= 1.25 and few <= 1.25 else "contradicted",
           f"bfloat16 up to 8 chunks {few:.2f} x, a chunk a token {worst['bfloat16']:.2f} x; sums in float32 {worst['mixed']:.2f} x",
           "standard's error by parameter, the worst of five small models", "precision")
    sft, dpo, short = (training_gap(*which) for which in (("training-500", "sft"), ("training-500", "dpo"), ("training", "dpo")))
    verdict = "contradicted" if sft > 0.004 else "holds" if dpo <= 0.004 else "holds of SFT"
    yield ("losses of training differ by at most 0.004 in 500 steps (table 7)", verdict, f"SFT {sft:.1e}",
           f"standard back-propagation; float32 where the paper has bfloat16, tiny models. DPO: {short:.1e} in 300 steps, and {dpo:.1e} in 500, when a loss of some 0.001 "
           "is learned by heart and training itself amplifies rounding", "training-500", "training")


def training_gap(folder, objective):
    """How far streambp's losses in float32 are from standard's at any step."""
    curves = {(each["variant"], each["data_seed"], each["method"]): each["losses"] for each in lines_of(folder, "curves.jsonl")
              if each["dtype"] == "float32" and each["objective"] == objective}
    return max(abs(a - b) for (variant, seed, method), losses in curves.items() if method == "streambp"
               for a, b in zip(losses, curves[variant, seed, "standard"], strict=True))


def authors_claims():
    """What their own code does at the longest length, in the faster and in the smaller of the two sizes of chunks that it is measured with."""
    records = lines_of("authors-code", "results.jsonl")
    length = max(record["seq_len"] for record in records)
    one = Comparison("authors-code", length)
    theirs = [method for method in one.seconds if method.startswith("authors+")]
    fastest, smallest = min(theirs, key=one.time), min(theirs, key=one.bytes.get)
    ratios = one.ratios(fastest, "authors-checkpoint")
    memory = one.bytes[smallest] / one.bytes["authors-checkpoint"]
    judged = sorted({record["verdict"] for record in records if "verdict" in record})
    yield ("the authors' code: back-propagation in comparable or less time than with checkpointing", "holds" if statistics.median(ratios) <= 1.05 else "not on a CPU",
           f"{length:,} tokens {statistics.median(ratios):.2f} x ({one.interval(fastest, 'authors-checkpoint')}, {len(ratios)} rounds)",
           "checkpointing on the torch and transformers that it pins, small Qwen3 in float32 on two cores; its attention computes all scores there; the paper's times are a GPU's", "authors-code")
    yield ("the authors' code: less memory than checkpointing", "holds" if memory < 1 else "contradicted", f"{length:,} tokens {memory:.2f} x",
           f"the same runs, beyond weights and gradients; `streambp` here takes {one.bytes['streambp'] / one.bytes[smallest]:.2f} x of what theirs takes. "
           f"Its gradients: {', '.join(judged)}", "authors-code")


def origin(name):
    """A folder of results/ with the machines and the commits of its records."""
    found = [made for _, made in environments(RESULTS / name)]
    machines, commits = (list(dict.fromkeys(filter(None, each))) for each in ([machine_of(made) for made in found], [str(made.get("commit", ""))[:7] for made in found]))
    return f"[{name}](../{name}) ({', '.join([*machines, *(commits if len(commits) < 3 else [f'{len(commits)} commits'])])})"


def page_text(folder):
    asked = list(map(parse_record, read_text(folder / "claims.jsonl").splitlines()))
    claims = [*length_claims(Cells(folder), asked), *memory_claim(asked), *time_claims(), *rank_claims(), *exactness_claims(), *authors_claims()]
    kinds = dict.fromkeys(verdict for _, verdict, *_ in claims)
    verdicts = "; ".join(f"{kind}: {sum(verdict == kind for _, verdict, *_ in claims)}" for kind in kinds)
    rows = (f"| {claim} | **{verdict}** | {here} | {why} | {', '.join(map(origin, folders))} |" for claim, verdict, here, why, *folders in claims)
    reproduced = [row["verdict"] == "reproduced" for row in Cells(folder).rows if row["table"] == "3" and row["row"] == "streambp" and row["run_as"] == "as here" and row["published"]]
    return PAGE.format(verdicts=f"Of {len(claims)} claims: {verdicts}.", rows="\n".join(rows), made=made_by(asked)[0], reproduced=f"{sum(reproduced)} of {len(reproduced)}")


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "paper", metavar="FOLDER")
    parser.add_argument("--page", action="store_true", help="only the page, from the records that are there")
    parser.add_argument("--check", action="store_true", help="whether the page is what the records that are there say")
    options = parser.parse_args()
    if not options.page and not options.check:
        write_file(options.out / "claims.jsonl", "".join(json.dumps(record) + "\n" for record in predictions()))
    text = page_text(options.out)
    if not options.check:
        write_file(options.out / "README.md", text)
        print(text)
    elif text != read_text(options.out / "README.md"):
        print(f"{options.out / 'README.md'}: not what the records say; scripts/pages/paper_claims.py --page writes it anew")
        return 1
    return 0


if __name__ == "__main__":
    run(main)
