"""sb.measure: peaks that can be computed by hand, nested, by scope, on several threads."""

import os
import subprocess
import sys
import threading
import unittest

import numpy
import torch
from python_case import Case

import streambp_bench as sb
from streambp_bench._measure import load, measure, scope

load()
MEGABYTE = 1_000_000


def floats(count):
    return torch.empty(count, dtype=torch.float32)


class Peaks(Case):
    def test_bytes_computed_by_hand(self):
        kept = floats(MEGABYTE)
        with measure() as m:
            a = floats(2 * MEGABYTE)
            b = floats(3 * MEGABYTE)
            del a
            c = floats(MEGABYTE)
            self.assertEqual(m.live_bytes - m.start_bytes, 16 * MEGABYTE)
            del b, c
        self.assertEqual(m.beyond_start, 20 * MEGABYTE)
        self.assertEqual(m.peak_bytes, m.start_bytes + 20 * MEGABYTE)
        self.assertEqual(m.live_bytes, m.start_bytes)
        self.assertEqual(sum(m.at_peak.values()), m.peak_bytes)
        floats(9 * MEGABYTE)
        self.assertEqual(m.beyond_start, 20 * MEGABYTE, "what comes after the end is not measured")
        self.assertGreaterEqual(m.start_bytes, kept.numel() * 4)

    def test_autograd_of_a_product(self):
        x = torch.randn(1000, 500, requires_grad=True)
        w = torch.randn(500, 500, requires_grad=True)
        with measure() as m:
            (x @ w).pow(2).sum().backward()
        # At the peak of the backward pass: the product and its gradient [1000, 500], twice in pow's own backward, and dx.
        self.assertGreaterEqual(m.beyond_start, 2 * 4 * 1000 * 500)
        self.assertLessEqual(m.beyond_start, 5 * 4 * 1000 * 500)
        self.assertEqual(m.live_bytes - m.start_bytes, 4 * (1000 * 500 + 500 * 500))

    def test_nested_and_interrupted(self):
        with measure() as outer:
            floats(5 * MEGABYTE)
            with self.assertRaises(RuntimeError), measure() as inner:
                a = floats(MEGABYTE)
                raise RuntimeError
            self.assertEqual(inner.beyond_start, 4 * MEGABYTE)
            self.assertEqual(outer.beyond_start, 20 * MEGABYTE, "the inner start does not end the outer's peak")
            with measure() as inner:
                floats(6 * MEGABYTE)
            del a
        self.assertEqual(inner.beyond_start, 24 * MEGABYTE)
        self.assertEqual(outer.beyond_start, 28 * MEGABYTE)

    def test_scopes_of_a_thread(self):
        with measure() as m:
            with scope("one of ours"):
                a = floats(MEGABYTE)
                with scope("inside"):
                    b = floats(2 * MEGABYTE)
                c = floats(MEGABYTE)
            with self.assertRaises(KeyError), scope("interrupted"):
                raise KeyError
            d = floats(MEGABYTE)

            def elsewhere():
                with scope("another thread's"):
                    self.kept = floats(3 * MEGABYTE)

            with scope("this thread's"):
                worker = threading.Thread(target=elsewhere)
                worker.start()
                worker.join()
                e = floats(MEGABYTE)
        self.assertEqual({name: m.at_peak[name] / 4 / MEGABYTE for name in ("one of ours", "inside", "another thread's", "this thread's")},
                         {"one of ours": 2, "inside": 2, "another thread's": 3, "this thread's": 1})
        self.assertNotIn("interrupted", m.at_peak)
        self.assertEqual(m.beyond_start, 9 * 4 * MEGABYTE)
        del a, b, c, d, e, self.kept

    def test_what_is_not_counted_is_said(self):
        array = torch.from_numpy(numpy.zeros(MEGABYTE, dtype=numpy.float32))
        with measure() as m:
            floats(MEGABYTE)
        self.assertGreaterEqual(m.uncounted_bytes, 4 * MEGABYTE)
        self.assertEqual(m.beyond_start, 4 * MEGABYTE)
        self.assertIn("not counted", str(m))
        del array
        with measure() as after:
            pass
        self.assertEqual(m.uncounted_bytes - after.uncounted_bytes, 4 * MEGABYTE)

    def test_a_dry_run_inside_changes_nothing(self):
        with measure() as m:
            a = floats(5 * MEGABYTE)
            prediction = sb.predict("qwen3-8b", tokens=8192, offload="host")
            del a
        self.assertGreater(prediction.host_peak_bytes, 0)
        self.assertEqual(m.host_peak_bytes, 0)
        self.assertLess(m.beyond_start, 21 * MEGABYTE)
        self.assertGreaterEqual(m.beyond_start, 20 * MEGABYTE)

    @unittest.skipUnless(torch.cuda.is_available(), "no CUDA device")
    def test_on_cuda(self):
        kept = torch.empty(MEGABYTE, device="cuda")
        with measure("cuda") as m:
            a = torch.empty(2 * MEGABYTE, device="cuda")
            del a
        self.assertGreaterEqual(m.start_bytes, kept.nbytes)
        self.assertGreaterEqual(m.beyond_start, 8 * MEGABYTE)
        self.assertLess(m.beyond_start, 9 * MEGABYTE)
        self.assertEqual(m.live_bytes, m.start_bytes)

    def test_refusals(self):
        self.assert_refused(lambda: measure("meta"), "meta", "cpu or cuda")
        with measure() as m:
            self.assert_refused(m.__enter__, "running")
        self.assert_refused(lambda: scope("").__enter__(), "scope")
        code = "import streambp_bench as sb\nfrom streambp_bench._measure import measure\ntry: measure()\nexcept sb.InputError as e: print(e)"
        shown = subprocess.run([sys.executable, "-c", code], env={**os.environ, "STREAMBP_METER": "off"}, capture_output=True, text=True)
        self.assertIn("STREAMBP_METER", shown.stdout, shown.stderr)


if __name__ == "__main__":
    unittest.main()
