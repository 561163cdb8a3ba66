"""Rates of a GPU fitted to measured passes, and what they say of passes that they have not seen: for gpu_report.py."""

import copy
import statistics

FITTED_MODEL = "qwen3-8b"  # whose measured passes the rates of bench/roofline.json were fitted to
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


def is_fitted(cell):
    """Whether the rates of bench/roofline.json were fitted to this very pass."""
    return bool(cell.seconds("measured") and cell.predicted_seconds and cell.record["model"] == FITTED_MODEL and not cell.setting("deterministic")
                and not cell.record["work"]["host_bytes"])


def off_by(errors):
    return f"{max(errors, key=abs):+.1%} at worst, {statistics.median(map(abs, errors)):.1%} in the median"


def samples_lines(cells, gpu, configuration):
    """What the rates of bench/roofline.json say of the passes that they were fitted to, of the same by a fit that left them out, and of passes that no fit saw."""
    known = [cell for cell in cells if is_fitted(cell)]
    unseen = [cell for cell in cells if cell.seconds("measured") and cell.predicted_seconds and not is_fitted(cell)]
    lengths = sorted({cell.record["seq_len"] for cell in known})
    if len(lengths) < 3:
        return []
    rows, inside, outside = [], [], []
    for length in lengths:
        others = fitted([cell for cell in known if cell.record["seq_len"] != length], gpu)
        for cell in (cell for cell in known if cell.record["seq_len"] == length):
            left_out = others.seconds(cell.record["work"], False)
            inside.append(cell.predicted_seconds / cell.measured_seconds - 1)
            outside.append(left_out / cell.measured_seconds - 1)
            rows.append(f"| {cell.record['model']} | {length:,} | {configuration(cell.record)} | {cell.measured_seconds:.3f} | {cell.predicted_seconds:.3f} | "
                        f"{inside[-1]:+.1%} | {left_out:.3f} | {outside[-1]:+.1%} |")
    never = [cell.predicted_seconds / cell.measured_seconds - 1 for cell in unseen]
    rows += [f"| {cell.record['model']} | {cell.record['seq_len']:,} | {configuration(cell.record)} | {cell.measured_seconds:.3f} | - | - | "
             f"{cell.predicted_seconds:.3f} | {error:+.1%} |" for cell, error in zip(unseen, never)]
    models = ", ".join(dict.fromkeys(cell.record["model"] for cell in unseen))
    return ["", "## Seconds in and out of sample", "",
            f"The rates of bench/roofline.json were fitted to measured passes of {FITTED_MODEL}. How far predicted seconds are from measured ones:", "",
            f"- in sample, the {len(known)} passes of that fit: {off_by(inside)};",
            f"- out of sample, the same passes by rates that are fitted to all other lengths: {off_by(outside)};",
            f"- out of sample, {len(unseen)} passes that no fit saw ({models}): {off_by(never)}." if unseen else "- no pass that no fit saw was measured.", "",
            "Seconds of cells that were not measured are out of sample everywhere on this page.", "",
            "| model | tokens | method | measured s | in sample s | off by | out of sample s | off by |", "|---|---:|---|---:|---:|---:|---:|---:|", *rows]
