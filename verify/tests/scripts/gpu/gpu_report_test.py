"""scripts/gpu/gpu_report.py: seconds in and out of sample, and that the page of results/cuda is what it makes of the records.

gpu_report_test.py PROJECT
"""

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(sys.argv[1])
sys.path.insert(0, str(PROJECT / "scripts/gpu"))

import gpu_rates  # noqa: E402
import gpu_report  # noqa: E402


class Pass:
    """A cell whose seconds are predicted by the rates themselves, times `factor`."""

    def __init__(self, model, tokens, factor, gpu):
        work = {"products_flops": 1e10 * tokens, "attention_forward_flops": 2e5 * tokens**2, "attention_backward_flops": 4e5 * tokens**2,
                "moved_bytes": 1e6 * tokens, "host_bytes": 0}
        self.record = {"model": model, "seq_len": tokens, "method": "streambp", "settings": {}, "work": work}
        self.predicted_seconds = gpu.seconds(work, False)
        self.measured_seconds = self.predicted_seconds * factor

    def seconds(self, which):
        return getattr(self, f"{which}_seconds")

    def setting(self, name):
        return self.record["settings"].get(name)


def main():
    gpu = gpu_report.load_gpus()["H200"]
    fitted = [Pass(gpu_rates.FITTED_MODEL, tokens, 1.0, gpu) for tokens in (1000, 10000, 100000)]
    other = [Pass("another", 1000, 1 / 0.9, gpu), Pass("another", 2000, 1 / 1.04, gpu)]
    assert [gpu_rates.is_fitted(cell) for cell in fitted + other] == [True] * 3 + [False] * 2
    said = "\n".join(gpu_rates.samples_lines(fitted + other, gpu, gpu_report.configuration))
    assert "2 passes that no fit saw (another): -10.0% at worst, 7.0% in the median" in said, said
    assert len(re.findall(r"^\| another \| .*\| - \| - \|", said, re.MULTILINE)) == 2, said
    assert "no pass that no fit saw" in "\n".join(gpu_rates.samples_lines(fitted, gpu, gpu_report.configuration))
    made = subprocess.run([sys.executable, PROJECT / "scripts/gpu/gpu_report.py", PROJECT / "results/cuda"], capture_output=True, text=True, check=True).stdout
    for heading in ("what | target | predicted (seconds: in sample", "predicted x checkpoint (in sample: measured qwen3-8b)", "predicted s (in sample: measured qwen3-8b)"):
        assert heading in made, heading
    assert (PROJECT / "results/cuda/README.md").read_text().endswith(made), "scripts/gpu.sh table results/cuda makes another page"


main()
