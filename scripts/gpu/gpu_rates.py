"""Rates of a GPU fitted to measured passes, and what they say of passes that they have not seen: for gpu_report.py."""

import copy
import statistics

BACKWARD = 0.56 / 0.69  # cuDNN's backward pass by its forward pass, each alone (bench/roofline.json)


def fitted(cells, gpu):
    """The GPU with the parts of products and of attention (backward 0.81 of forward, as cuDNN's alone are) that leave the least squares of the cells' errors,
    relative to their measured seconds."""
    rows = []
    for cell in cells:
        work, seconds = cell.record["work"], cell.measured_seconds
        attention = work["attention_forward_flops"] + work["attention_backward_flops"] / BACKWARD
        moved = work["moved_bytes"] / (gpu.memory * gpu.part["moved"])
        rows.append((work["products_flops"] / gpu.flops / seconds, attention / gpu.flops / seconds, 1.0 - moved / seconds))
    pp, aa, pa, py, ay = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (1, 1), (0, 1), (0, 2), (1, 2)))
    determinant = pp * aa - pa * pa
    forward = determinant / (pp * ay - pa * py)
    other = copy.copy(gpu)
    other.part = {**gpu.part, "products": determinant / (aa * py - pa * ay), "attention_forward": forward, "attention_backward": BACKWARD * forward}
    return other


def samples_lines(cells, gpu, configuration):
    """The rates of bench/roofline.json were fitted to these very passes: what they say of passes that the rates have not seen."""
    known = [cell for cell in cells if cell.seconds("measured") and cell.predicted_seconds and cell.record["model"] == "qwen3-8b" and not cell.setting("deterministic")
             and not cell.record["work"]["host_bytes"]]
    lengths = sorted({cell.record["seq_len"] for cell in known})
    if len(lengths) < 3:
        return []
    rows, inside, outside = [], [], []
    for length in lengths:
        others = fitted([cell for cell in known if cell.record["seq_len"] != length], gpu)
        for cell in (cell for cell in known if cell.record["seq_len"] == length):
            unseen = others.seconds(cell.record["work"], False)
            inside.append(cell.predicted_seconds / cell.measured_seconds - 1)
            outside.append(unseen / cell.measured_seconds - 1)
            rows.append(f"| {length:,} | {configuration(cell.record)} | {cell.measured_seconds:.3f} | {cell.predicted_seconds:.3f} | {inside[-1]:+.1%} | {unseen:.3f} | "
                        f"{outside[-1]:+.1%} |")
    return ["", "## Seconds in and out of sample", "",
            f"The rates of bench/roofline.json were fitted to measured passes of qwen3-8b, these {len(known)} among them: beside them \"predicted\" says how well the "
            "model describes what it was fitted to. Out of sample, the rates of products and attention are fitted to the passes of all other lengths. "
            f"The worst is {max(map(abs, inside)):.1%} off in sample and {max(map(abs, outside)):.1%} out of it, the median {statistics.median(map(abs, inside)):.1%} "
            f"and {statistics.median(map(abs, outside)):.1%}. Seconds of cells that were not measured are out of sample everywhere on this page.", "",
            "| tokens | method | measured s | in sample s | off by | out of sample s | off by |", "|---:|---|---:|---:|---:|---:|---:|", *rows]
