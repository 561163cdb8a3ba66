#!/usr/bin/env python3
"""The figures of README.md, verify/proofs.md, bench/longest.md and results/README.md that come from records, made again from them.

    scripts/readme_figures.py            prints the lines as they have to be
    scripts/readme_figures.py --check    exit code 1 where a page says something else

They are those of times and memory next to Hugging Face (results/compare-*, qwen3.5-*), of a token's bytes (results/bytes-per-token), of
predictions against the allocator (results/prediction), of one GPU (results/cuda), of ranks (results/ranks-*), and of what the proofs reached (results/proofs, which
scripts/proofs.py makes). The other longest sequences are what the commands above them print (scripts/check_readme.py).
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

import gpu_report

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (2048, 4096, 8192)
# Rows of the table of times, as the records call them.
METHODS = {
    "Hugging Face, gradient checkpointing": "hf-checkpoint",
    "`standard`": "standard",
    "`checkpoint`": "checkpoint",
    "`streambp`": "streambp",
    "`streambp --keep-attention`": "streambp+keep-attention",
}
# Rows of the table of times on a GPU.
ON_A_GPU = {"Hugging Face, gradient checkpointing": "hf-checkpoint", "`sb.patch` on its model": "python-patch",
            "`sb.backward` on its model": "python"}
# Rows of the table of a token's bytes: preset by name.
PRESETS = {"gpt-oss-20b": "gpt-oss-20b", "Qwen3.5-9B": "qwen3.5-9b", "Qwen3.5-35B-A3B": "qwen3.5-35b-a3b", "Gemma 4 E4B": "gemma-4-e4b",
           "Gemma 4 31B": "gemma-4-31b", "DeepSeek V3": "deepseek-v3"}
PLANS = ("checkpoint", "streambp", "streambp, offload host", "chunk-major")


def records_of(folder):
    path = ROOT / "results" / folder / "results.jsonl"
    if not path.is_file():
        sys.exit(f"results/{folder}/results.jsonl: no such file; results/README.md says what makes it")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Comparison:
    """Medians of the repeats of a folder of scripts/compare_hf.py."""

    def __init__(self, folder):
        self.seconds, self.bytes = {}, {}
        for record in records_of(folder):
            self.seconds.setdefault(record["method"], []).append(record["seconds"])
            most = self.bytes.get(record["method"], 0)
            self.bytes[record["method"]] = max(most, record["peak_beyond_resident_bytes"])

    def time(self, method):
        return statistics.median(self.seconds[method])

    def times(self, method, base):
        return self.time(method) / self.time(base)


def bytes_text(count):
    """Three digits: 12.2 KB, 139 KB, 2.56 MB."""
    unit, size = next((one for one in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if count >= one[1]), ("B", 1))
    value = count / size
    return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"


def times_lines():
    folders = {length: Comparison(f"compare-{length}") for length in LENGTHS}
    for name, method in METHODS.items():
        cells = [text for one in folders.values() for text in (f"{one.time(method):.2f} s", f"{one.bytes[method] / 1e6:,.0f} MB")]
        yield f"| {name} | {' | '.join(cells)} |"
    longest = folders[LENGTHS[-1]]
    megabytes = {method: longest.bytes[method] / 1e6 for method in ("streambp", "checkpoint", "standard")}
    least = megabytes["streambp"]
    yield (f"At {LENGTHS[-1]:,} tokens `streambp` takes {least:.0f} MB beyond weights and gradients, `checkpoint` {megabytes['checkpoint']:,.0f} MB "
           f"({megabytes['checkpoint'] / least:.0f} x) and `standard` {megabytes['standard']:,.0f} MB ({megabytes['standard'] / least:.0f} x), with "
           f"`streambp` in {longest.times('streambp', 'checkpoint'):.2f} x the time of `checkpoint`.")


def recurrent_lines():
    two, one = Comparison("qwen3.5-2"), Comparison("qwen3.5-1")
    memory = two.bytes["streambp"] / two.bytes["hf-checkpoint"]
    yield (f"at 8,192 tokens takes {two.times('streambp', 'hf-checkpoint'):.2f} x the time and {memory:.3f} x the memory of Hugging Face's gradient "
           f"checkpointing, {two.times('streambp', 'checkpoint'):.2f} x the time of `checkpoint`; on one thread "
           f"{one.times('streambp', 'hf-checkpoint'):.2f} x and {one.times('streambp', 'checkpoint'):.2f} x")


def token_lines():
    slopes = {(record["model"], record["way"]): record["bytes_per_token"] for record in records_of("bytes-per-token")}
    for name, preset in PRESETS.items():
        yield f"| {name} | {' | '.join(bytes_text(slopes[preset, plan]) for plan in PLANS)} |"


def prediction_lines():
    peaks = {}
    for record in records_of("prediction"):
        settings = {name: value for name, value in record["settings"].items() if name not in ("threads", "repeats", "memory_limit")}
        configuration = json.dumps([record[name] for name in ("model", "objective", "method", "seq_len", "batch", "dtype")] + [settings], sort_keys=True)
        peaks.setdefault(configuration, {})[record["kind"]] = record["peak_bytes"]
    pairs = [pair for pair in peaks.values() if len(pair) == 2]
    worst = max(abs(pair["predicted"] / pair["measured"] - 1) for pair in pairs)
    yield f"within {100 * worst:.3f} % over {len(pairs)} pairs of records"


def gpu_lines():
    found = {(record["method"], record["seq_len"]): record for record in records_of("cuda/hugging-face")}
    lengths = sorted({length for _, length in found})
    for name, method in ON_A_GPU.items():
        cells = [text for length in lengths for text in (f"{statistics.median(found[method, length]['seconds']):.2f} s",
                                                         f"{found[method, length]['peak_beyond_resident_bytes'] / 1e9:.1f} GB")]
        yield f"| {name} | {' | '.join(cells)} |"
    cells = gpu_report.all_cells(list(gpu_report.records(ROOT / "results/cuda")), gpu_report.load_gpus())
    bases = {"measured": gpu_report.checkpointing(cells, "measured")}
    ours = [cell for cell in cells if cell.record["method"] == "streambp" and cell.record["model"] == "qwen3-8b"]

    def least(parts, tokens):
        ratios = [gpu_report.ratio(cell, bases, "measured") for cell in ours if cell.part in parts and cell.record["tokens"] == tokens]
        return min(ratio for ratio in ratios if ratio)

    longest = max((cell for cell in ours if cell.part == "lengths" and cell.measured_seconds), key=lambda cell: cell.record["tokens"])
    errors = [abs(one) for cell in cells if (one := cell.difference()) is not None]
    yield (f"at 8,192 tokens `streambp` takes {least(['speed'], 8192):.3f} x the time of `checkpoint`, at 32,768 with what 130 GiB let it keep "
           f"{least(['speed-auto'], 32768):.3f} x; {longest.record['tokens']:,} tokens fit 80 GiB and take {longest.measured_seconds:.0f} s")
    yield f"the worst of {len(errors)} peaks on the H200 is {100 * max(errors):.4f} % off"


def ranks_lines():
    lengths = {(record["settings"]["ranks"], record["method"]): record["seq_len"] for record in records_of("ranks-zero2")}
    yield (f"{lengths[3, 'streambp']:,} to {lengths[8, 'streambp']:,} tokens on each card with `streambp` and {lengths[3, 'checkpoint']:,} to "
           f"{lengths[8, 'checkpoint']:,} with `checkpoint`")
    settings = ("ranks", "exchange")
    peaks = {(*(record["settings"].get(name, "gather") for name in settings), record["seq_len"]): bytes_text(record["peak_bytes"])
             for record in records_of("ranks-rows")}
    yield (f"{1 << 20:,} tokens are predicted to take {peaks[8, 'gather', 1 << 20]} on each of 8 ranks and {peaks[64, 'gather', 1 << 20]} on "
           f"each of 64, where one rank would need {peaks[1, 'gather', 1 << 20]}")
    yield (f"keys and values in a ring {peaks[8, 'ring', 1 << 20]} and {peaks[64, 'ring', 1 << 20]}; {8 << 20:,} tokens on 256 ranks take "
           f"{peaks[256, 'ring', 8 << 20]} instead of {peaks[256, 'gather', 8 << 20]}")


def limit_text(limit):
    """1e-10; 1.25."""
    return f"{limit:g}".replace("e-0", "e-")


def error_text(error):
    """1.5e-12; 9.6e-7."""
    return f"{error:.1e}".replace("e-0", "e-")


class Proofs:
    """What scripts/proofs.py kept; of a proof that did not hold, words that no page has."""

    def __init__(self):
        self.records = {record["proof"]: record for record in records_of("proofs")}

    def figure(self, proof, what):
        record = self.records[proof]
        figure = next(one for one in record["figures"] if one["what"] == what)
        return figure if record["good"] and figure["holds"] else {**figure, "reached": float("nan")}

    def reached(self, proof, what):
        return error_text(self.figure(proof, what)["reached"])

    def times(self, what):
        return f"{self.figure('precision', what)['reached']:.2f} x"

    def row(self, proof, what, checked_by):
        return f"| {checked_by} | {limit_text(self.figure(proof, what)['limit'])} | {self.reached(proof, what)} |"


def readme_proof_lines():
    proofs = Proofs()
    goldens, sweep = proofs.records["goldens"], proofs.records["sweep"]
    yield proofs.row("goldens", "Hugging Face, PEFT and TRL", f"`{goldens['command']}`: {goldens['cases']} cases")
    yield proofs.row("sweep", "to standard", f"`{sweep['command']}`: {sweep['comparisons']:,} comparisons")
    yield proofs.row("sweep", "to reference", "the same")
    limit = limit_text(proofs.figure("precision", "float32")["limit"])
    yield f"| `{proofs.records['precision']['command']}` | {limit} x | {proofs.times('float32')}, {proofs.times('bfloat16')} |"
    yield f"| `{sweep['command']}` | bit-equal | {'bit-equal' if sweep['good'] and sweep['failed'] == 0 else 'nan'} |"
    yield f"`{goldens['cases']} passed, 0 failed, {goldens['unsupported']} unsupported; limit {proofs.figure('goldens', 'Hugging Face, PEFT and TRL')['limit']:.1e}`"


def proofs_page_lines():
    proofs = Proofs()
    goldens, sweep, properties = (proofs.records[name] for name in ("goldens", "sweep", "properties"))
    yield proofs.row("goldens", "Hugging Face, PEFT and TRL", f"`{goldens['command']}`: {goldens['cases']} cases, {goldens['models']} models")
    yield proofs.row("sweep", "to standard", f"`{sweep['command']}`: {sweep['comparisons']:,} comparisons")
    yield proofs.row("sweep", "to reference", "the same")
    yield f"`properties_test`: {properties['passes']:,} passes, {properties['comparisons']:,} comparisons"
    yield f"| 1e-12 | {proofs.reached('properties', 'to standard')} |"
    yield f"| 1e-10 | {proofs.reached('properties', 'to reference')} |"
    yield proofs.row("gradcheck", "complex steps", "`streambp-verify gradcheck`")
    for what in ("extended precision", "six-point differences"):
        yield proofs.row("gradcheck", what, "the same")
    for what in ("float32", "bfloat16", "bfloat16, gradients summed in float32"):
        yield f"| 1.25 x | {proofs.times(what)} |"
    single, half = (proofs.figure("precision", what) for what in ("float32", "bfloat16"))
    yield (f"are {error_text(single['worst_error'])} and {error_text(half['worst_error'])} (`k_norm` of the first layer), where standard back-propagation has "
           f"{error_text(single['worst_error_of_standard'])} and {error_text(half['worst_error_of_standard'])}")


PAGES = {"README.md": (times_lines, prediction_lines, readme_proof_lines), "verify/proofs.md": (proofs_page_lines,),
         "bench/longest.md": (token_lines, ranks_lines), "results/README.md": (recurrent_lines, gpu_lines)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the pages")
    parser.add_argument("--pages", type=Path, default=ROOT, help="the folder of the pages to compare with (default: the project's)")
    options = parser.parse_args()
    count = differing = 0
    for name, parts in PAGES.items():
        lines = [line for part in parts for line in part()]
        count += len(lines)
        if not options.check:
            print("\n".join(lines))
            continue
        page = re.sub(r"\s+", " ", (options.pages / name).read_text(encoding="utf-8"))
        for line in lines:
            if line not in page:
                print(f"{name}: not there, as the records have it: {line}")
                differing += 1
    if options.check:
        print(f"{count} statements with figures, {differing} differ from the records")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
