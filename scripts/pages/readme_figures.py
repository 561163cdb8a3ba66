#!/usr/bin/env python3
"""Figures of the pages that come from records: each stands there as the records have it.

    scripts/pages/readme_figures.py            prints them by name
    scripts/pages/readme_figures.py --check    exit code 1 where a page has another figure

A page says `<!-- figures: NAME -->` before a paragraph or a table: up to the next blank line the figures of NAME follow in their order, whatever the words
between them. The other longest sequences are what the commands above them print (scripts/house/check_readme.py).
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import gpu_report

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = (2048, 4096, 8192)
LANES = ("hf-checkpoint+selective+torch-head", "hf-checkpoint+torch-head", "hf-checkpoint", "python-module", "python-patch", "python")
METHODS = ("hf-checkpoint", "standard", "checkpoint", "streambp", "streambp+keep-attention")
PRESETS = ("gpt-oss-20b", "qwen3.5-9b", "qwen3.5-35b-a3b", "gemma-4-e4b", "gemma-4-31b", "deepseek-v3")
PLANS = ("checkpoint", "streambp", "streambp, offload host", "chunk-major")


def records_of(folder, name="results.jsonl"):
    path = ROOT / "results" / folder / name
    if not path.is_file():
        sys.exit(f"results/{folder}/{name}: no such file; results/README.md says what makes it")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Comparison:
    """Medians of the repeats of a folder of scripts/compare_hf.py, of one length where it has several."""

    def __init__(self, folder, length=None):
        self.seconds, self.bytes, self.rounds = {}, {}, {}
        for record in records_of(folder):
            if length not in (None, record["seq_len"]):
                continue
            self.seconds.setdefault(record["method"], []).append(record["seconds"])
            self.rounds[record["method"], record["repeat"]] = record["seconds"]
            most = self.bytes.get(record["method"], 0)
            self.bytes[record["method"]] = max(most, record["peak_beyond_resident_bytes"])

    def time(self, method):
        return statistics.median(self.seconds[method])

    def times(self, method, base):
        return self.time(method) / self.time(base)

    def ratios(self, method, base):
        """Of seconds, round by round."""
        return [seconds / self.rounds[base, i] for (name, i), seconds in self.rounds.items() if name == method and (base, i) in self.rounds]

    def interval(self, method, base):
        """By the rule of reports (bench/records.md): of up to 8 rounds the range of their ratios."""
        ratios = self.ratios(method, base)
        return f"{min(ratios):.2f} to {max(ratios):.2f}"

    def ratio(self, method, base):
        """Of seconds, the median and the interval."""
        return f"{statistics.median(self.ratios(method, base)):.2f} x ({self.interval(method, base)})"


def quotient(ours, base, digits=3):
    """Of medians, with the interval that reports give what was not measured in turns: the ends of both, divided."""
    low, middle, high = (f"{one:.{digits}f}" for one in (min(ours) / max(base), statistics.median(ours) / statistics.median(base), max(ours) / min(base)))
    return f"{middle} x ({low} to {high})"


def bytes_text(count):
    """Three digits: 12.2 KB, 139 KB, 2.56 MB."""
    unit, size = next((one for one in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if count >= one[1]), ("B", 1))
    value = count / size
    return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"


def times():
    folders = [Comparison(f"compare-{length}") for length in LENGTHS]
    return [text for method in METHODS for one in folders for text in (f"{one.time(method):.2f} s", f"{one.bytes[method] / 1e6:,.0f} MB")]


def lanes():
    """Time by round relative to the fastest of Hugging Face's, on either processor, and memory, of the package's lanes and of Hugging Face's checkpointing."""
    machines = [Comparison(name, 4096) for name in ("head-times", "head-times-xeon")]
    fastest = [min((method for method in one.bytes if method.startswith("hf-")), key=one.time) for one in machines]
    texts = []
    for method in LANES:
        for one, least in zip(machines, fastest):
            texts.append(one.ratio(method, least) if method != least else "1.00 x")
        texts.append(f"{machines[0].bytes[method] / 1e6:,.0f} MB")
    return texts


def saving():
    longest = Comparison(f"compare-{LENGTHS[-1]}")
    least, *others = (longest.bytes[method] / 1e6 for method in ("streambp", "checkpoint", "standard"))
    return [f"{least:.0f} MB", *(text for other in others for text in (f"{other:,.0f} MB", f"{other / least:.0f} x")),
            longest.ratio("streambp", "checkpoint")]


def package():
    """By length: time of backward() and patch() relative to the C++ driver's, then to Hugging Face's checkpointing; then the three's memory."""
    folders = [Comparison(f"compare-{length}") for length in LENGTHS]
    ways = ("python", "python-patch")
    return [*(one.ratio(way, base) for base in ("streambp", "hf-checkpoint") for way in ways for one in folders),
            *(f"{one.bytes[way] / 1e6:.0f}" for way in ("streambp", *ways) for one in folders)]


def least():
    """Memory and time, by the fastest of Hugging Face's, of the shortest chunks with every second layer's input alone, and of the default."""
    folders = [Comparison("idle-times", length) for length in LENGTHS]
    fastest = [min((method for method in one.bytes if method.startswith("hf-")), key=one.time) for one in folders]
    ways = ("python+small+every=2", "python")
    return [*(f"{one.bytes[way] / 1e6:.0f}" for way in ways for one in folders), *(one.ratio(way, base) for way in ways for one, base in zip(folders, fastest))]


def recurrent():
    two = Comparison("qwen3.5-2")
    return [two.ratio("streambp", "hf-checkpoint"), f"{two.bytes['streambp'] / two.bytes['hf-checkpoint']:.3f} x", two.ratio("streambp", "checkpoint"),
            f"{len(two.seconds['streambp'])} rounds"]


def token_bytes():
    slopes = {(record["model"], record["way"]): record["bytes_per_token"] for record in records_of("bytes-per-token")}
    return [bytes_text(slopes[preset, plan]) for preset in PRESETS for plan in PLANS]


def prediction():
    peaks = {}
    for record in records_of("prediction"):
        settings = {name: value for name, value in record["settings"].items() if name not in ("threads", "repeats", "memory_limit")}
        configuration = json.dumps([record[name] for name in ("model", "objective", "method", "seq_len", "batch", "dtype")] + [settings], sort_keys=True)
        peaks.setdefault(configuration, {})[record["kind"]] = record["peak_bytes"]
    pairs = [pair for pair in peaks.values() if len(pair) == 2]
    worst = max(abs(pair["predicted"] / pair["measured"] - 1) for pair in pairs)
    return [f"{100 * worst:.3f} %", f"{len(pairs)} pairs"]


def gpu_times():
    found = {(record["method"], record["seq_len"]): record for record in records_of("cuda/hugging-face")}
    return [text for method in ("hf-checkpoint", "python-patch", "python") for length in sorted({length for _, length in found})
            for text in (f"{statistics.median(found[method, length]['seconds']):.2f} s", f"{found[method, length]['peak_beyond_resident_bytes'] / 1e9:.1f} GB")]


def gpu():
    cells = gpu_report.all_cells(list(gpu_report.records(ROOT / "results/cuda")), gpu_report.load_gpus())
    bases = gpu_report.checkpointing(cells, "measured")
    ours = [cell for cell in cells if cell.record["method"] == "streambp" and cell.record["model"] == "qwen3-8b"]

    def ratios(part, tokens):
        """To the faster checkpointing, the fastest cell first."""
        found = [cell for cell in ours if cell.part == part and cell.record["tokens"] == tokens and cell.seconds("measured")]
        return [quotient(cell.measured["gpu_seconds"], bases[cell.key()].measured["gpu_seconds"]) for cell in sorted(found, key=lambda cell: cell.measured_seconds)]

    def beyond(part, method):
        return next(f"{cell.measured['peak_beyond_resident_bytes'] / 1e9:.1f} GB" for cell in cells
                    if cell.part == part and cell.record["method"] == method and cell.record["tokens"] == 32768 and cell.measured_seconds)

    longest = max((cell for cell in ours if cell.part == "lengths" and cell.measured_seconds), key=lambda cell: cell.record["tokens"])
    errors = [abs(one) for cell in cells if (one := cell.difference()) is not None]
    return [*ratios("speed", 8192), *ratios("speed-auto", 32768), beyond("speed-auto", "streambp"), beyond("speed", "checkpoint"), beyond("speed-streamed-head", "checkpoint"), f"{longest.record['tokens']:,} tokens", f"{longest.measured_seconds:.0f} s",
            f"{len(errors)} peaks", f"{100 * max(errors):.4f} %"]


def ranks():
    lengths = {(record["settings"]["ranks"], record["method"], record["settings"]["head"]): record["seq_len"]
               for name in ("ranks-zero2", "ranks-zero2/streamed-head") for record in records_of(name)}
    peaks = {(record["settings"]["ranks"], record["settings"].get("exchange", "gather"), record["seq_len"]): bytes_text(record["peak_bytes"])
             for record in records_of("ranks-rows")}
    return [*(f"{lengths[cards, *way]:,}" for way in (("streambp", "streamed"), ("checkpoint", "full"), ("checkpoint", "streamed")) for cards in (3, 8)),
            *(peaks[cards, exchange, tokens << 20] for cards, exchange, tokens in (
                (8, "gather", 1), (64, "gather", 1), (1, "gather", 1), (8, "ring", 1), (64, "ring", 1), (256, "ring", 8), (256, "gather", 8)))]


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

    def row(self, proof, what):
        return limit_text(self.figure(proof, what)["limit"]), self.reached(proof, what)


def goldens_and_sweep(*more):
    proofs = Proofs()
    goldens, sweep = proofs.records["goldens"], proofs.records["sweep"]
    return [f"{goldens['cases']} cases", *more, *proofs.row("goldens", "Hugging Face, PEFT and TRL"), f"{sweep['comparisons']:,} comparisons",
            *proofs.row("sweep", "to standard"), *proofs.row("sweep", "to reference")]


def in_chunks(*precisions, method="streambp"):
    """A method's error by standard's own, in however many chunks: the worst of scripts/pages/precision.py's."""
    records = records_of("precision", "errors.jsonl")
    return [f"{max(one['times_standard'] for one in records if one['method'] == method and one['precision'] == precision):.2f} x" for precision in precisions]


def training():
    """The steps, and how far any method's losses are from standard's in float64, relatively."""
    curves = {(one["objective"], one["variant"], one["method"]): one["losses"] for one in records_of("training", "curves.jsonl") if one["dtype"] == "float64"}
    gaps = (abs(a - b) / abs(b) for (objective, variant, _), losses in curves.items() for a, b in zip(losses, curves[objective, variant, "standard"], strict=True))
    return [f"{len(next(iter(curves.values())))} optimizer steps", error_text(max(gaps))]


def confident():
    """The worst error of this project's code and that of the others'."""
    records = records_of("confident-tokens")
    ours, theirs = (max(one["worst_error"] for one in records if one["code"].startswith("streambp") == own) for own in (True, False))
    return [error_text(ours), f"{theirs:.1f}"]


def live_models():
    verdicts = [one["verdict"] for one in records_of("live-models")]
    return [f"{len(verdicts)} rows", f"{verdicts.count('exact')} exact", f"{verdicts.count('refused')} refused"]


def any_models():
    """The farthest gradient of what streams, of both versions of transformers."""
    return [error_text(max(one["error"] for name in ("any-model", "any-model-5.24") for one in records_of(name) if one["error"] is not None))]


def recipes():
    """The farthest gradient in float32 of a base that is not quantised."""
    return [error_text(max(one["gradient"] for one in records_of("recipes") if one["dtype"] == "float32" and not re.search("QLoRA|8 bits", one["recipe"])))]


def verdicts():
    records = records_of("compare-verdicts")
    return [f"{len(records)} comparisons", f"{len({one['model'] for one in records})} models"]


def proved():
    proofs = Proofs()
    return [*goldens_and_sweep(), f"{limit_text(proofs.figure('precision', 'float32')['limit'])} x", proofs.times("float32"), proofs.times("bfloat16"),
            *in_chunks("float32", "bfloat16")]


def passed():
    proofs = Proofs()
    goldens, limit = proofs.records["goldens"], proofs.figure("goldens", "Hugging Face, PEFT and TRL")["limit"]
    return [f"{goldens['cases']} passed", f"{goldens['unsupported']} unsupported", f"limit {limit:.1e}"]


def all_proofs():
    proofs = Proofs()
    properties = proofs.records["properties"]
    return [*goldens_and_sweep(f"{proofs.records['goldens']['models']} models"), f"{properties['passes']:,} passes", f"{properties['comparisons']:,} comparisons",
            proofs.reached("properties", "to standard"), proofs.reached("properties", "to reference"), *training(),
            *(proofs.times(what) for what in ("float32", "bfloat16", "bfloat16, gradients summed in float32")), *in_chunks("float32", "mixed", "bfloat16"),
            *in_chunks("bfloat16", method="chunk-major"), *confident(), *live_models(), *any_models(), *recipes(), *verdicts(),
            *(text for what in ("complex steps", "extended precision", "six-point differences") for text in proofs.row("gradcheck", what)),
            *reversed(prediction())]


def worst_errors():
    found = [Proofs().figure("precision", what) for what in ("float32", "bfloat16")]
    return [error_text(one[name]) for name in ("worst_error", "worst_error_of_standard") for one in found]


def planted():
    records = [record for record in records_of("planted") if record["mistake"]]  # the rest is right
    found = {dtype: [record for record in records if record["dtype"] == dtype] for dtype in ("float64", "float32")}
    named = {dtype: [record for record in of if record["named"]] for dtype, of in found.items()}
    return [f"{len(named['float64'])} of {len(found['float64'])}", f"{len(named['float32'])} in float32",
            f"{statistics.mean(record['passes'] for record in named['float64']):.0f} passes"]


PAGES = ("README.md", "verify/proofs.md", "bench/longest.md", "results/README.md", "verify/compare.md", "streambp/python/README.md")
FIGURES = {"lanes": lanes, "times": times, "saving": saving, "recurrent": recurrent, "package": package, "least": least, "token-bytes": token_bytes, "prediction": prediction, "gpu-times": gpu_times, "gpu": gpu,
           "ranks": ranks, "proved": proved, "passed": passed, "all-proofs": all_proofs, "worst-errors": worst_errors, "planted": planted}


def missing(text, figures):
    """Those that `text` does not have after the ones before them."""
    at = 0
    for figure in figures:
        found = re.compile(rf"(?<![\d.,]){re.escape(figure)}(?!\d)").search(text, at)
        if found:
            at = found.end()
        else:
            yield figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the pages")
    options = parser.parse_args()
    figures = {name: make() for name, make in FIGURES.items()}
    if not options.check:
        print("\n".join(f"{name}: {'; '.join(texts)}" for name, texts in figures.items()))
        return 0
    wrong, seen = [], set()
    for page in PAGES:
        for name, text in re.findall(r"<!-- figures: ([\w-]+) -->(.*?)(?=\n\n|\Z)", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL):
            seen.add(name)
            wrong += [f"{page}: {name}: not there, as the records have it: {figure}" for figure in missing(" ".join(text.split()), figures.get(name, [name]))]
    wrong += [f"no page has the figures {name}" for name in figures if name not in seen]
    print("\n".join([*wrong, f"{sum(map(len, figures.values()))} figures, {len(wrong)} differ from the records"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
