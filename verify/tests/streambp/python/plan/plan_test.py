"""sb.predict, longest, suggest and choose: what is predicted is what is measured, and what streambp-bench predicts."""

import json
import os
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import peft
import torch
import transformers
from python_case import GOLDENS, Case, inputs_of, model_in_float64

import streambp_bench as sb
from streambp_bench._measure import load, measure
from streambp_bench._plan import choose, longest, parse_bytes, predict, suggest

load()  # before any model is made: its tensors are counted
BENCH = Path(os.environ["STREAMBP_TORCH_LIBRARY"]).parents[1] / "bin/streambp-bench"
LIMIT = 0.01


def small_config(**changes):
    return transformers.Qwen3Config(**{"vocab_size": 1999, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 3,
                                       "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": False,
                                       "max_position_embeddings": 4096, **changes})


def batch_of(rows, columns, vocabulary=1999):
    tokens = torch.randint(5, vocabulary, (rows, columns), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


def bytes_of(model):
    """Weights, and as much for the gradients of what is trained."""
    return sum(p.nbytes * (2 if p.requires_grad else 1) for p in model.parameters())


def bench_record(*flags):
    """The one record of a sweep."""
    with tempfile.TemporaryDirectory() as folder:
        command = [BENCH, "sweep", *map(str, flags), "--quiet", "--out", folder]
        subprocess.run(command, check=True, capture_output=True, text=True)
        lines = (Path(folder) / "results.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return next(record for record in records if record.get("kind") != "environment")


class Measured(Case):
    def assert_as_measured(self, model, batch, what, objective="sft", **settings):
        predicted = predict(model, batch, objective=objective, **settings)
        sb.backward(model, batch, objective, **settings)  # makes .grad, which is resident from then on
        with measure() as m:
            _, info = sb.backward(model, batch, objective, return_info=True, idle_memory=False, **settings)
        self.assertEqual(predicted.resident_bytes, bytes_of(model), what)
        error = abs(predicted.beyond_resident - m.beyond_start) / (bytes_of(model) + m.beyond_start)
        print(f"{what}: predicted {predicted.beyond_resident} beyond the resident, measured {m.beyond_start}, {100 * error:.3f} % of the peak")
        self.assertTrue(error <= LIMIT, what)
        beyond = abs(predicted.beyond_resident - m.beyond_start) / m.beyond_start
        self.assertTrue(beyond <= 5 * LIMIT, what)
        self.assertEqual((predicted.chunk, predicted.tokens), (info.chunk, info.tokens), what)

    def test_sft(self):
        model = transformers.Qwen3ForCausalLM(small_config())
        batch = batch_of(2, 700)
        for settings in ({}, {"chunk": 100}, {"method": "checkpoint"}, {"chunk": 128, "keep": "attention"}, {"micro_batches": 2, "chunk": 128}):
            with self.subTest(settings=settings):
                self.assert_as_measured(model, batch, f"sft {settings}", **settings)

    def test_frozen_parts_and_adapters(self):
        model = transformers.Qwen3ForCausalLM(small_config())
        model.lm_head.weight.requires_grad_(False)
        model.model.embed_tokens.weight.requires_grad_(False)
        self.assert_as_measured(model, batch_of(1, 900), "frozen embedding and head", chunk=128)
        lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "down_proj"], lora_dropout=0.0)
        adapted = peft.get_peft_model(transformers.Qwen3ForCausalLM(small_config()), lora)
        self.assert_as_measured(adapted, batch_of(1, 900), "LoRA", chunk=128)

    def test_pairs(self):
        model = transformers.Qwen3ForCausalLM(small_config())
        batch = batch_of(2, 500)
        completion = torch.ones_like(batch.pop("labels"))
        completion[:, :100] = 0
        logps = torch.tensor([-700.0])
        batch |= {"completion_mask": completion, "ref_chosen_logps": logps, "ref_rejected_logps": logps}
        self.assert_as_measured(model, batch, "dpo", "dpo", chunk=128)


class SameAsThePrograms(Case):
    def setUp(self):
        if not BENCH.is_file():
            self.skipTest(f"no {BENCH}")

    def assert_same(self, prediction, record, what):
        self.assertEqual(prediction.breakdown, record["breakdown_at_peak"], what)
        for key in ("peak_bytes", "resident_bytes", "host_peak_bytes", "tokens", "model_flops", "hardware_flops"):
            self.assertEqual(getattr(prediction, key), record[key], f"{what}: {key}")

    def test_presets_on_both_devices(self):
        for device, dtype in (("cpu", "float32"), ("cuda", "bfloat16")):
            meta = "meta" if device == "cpu" else "meta:cuda"
            record = bench_record("--model", "qwen3-cpu", "--device", meta, "--dtype", dtype, "--seq-len", 900, "--batch", 2, "--method", "streambp")
            self.assert_same(predict("qwen3-cpu", tokens=900, sequences=2, dtype=dtype, device=device), record, f"qwen3-cpu on {device}")

    def test_objectives_adapters_and_states(self):
        record = bench_record("--model", "gemma3-cpu", "--device", "meta:cuda", "--dtype", "bfloat16", "--seq-len", 800, "--objective", "grpo",
                              "--set", "beta=0.1", "--lora-rank", 8, "--lora-targets", "all-linear", "--optimizer", "adamw", "--method", "streambp",
                              "--chunk", 128, "--keep", "attention", "--offload", "host")
        prediction = predict("gemma3-cpu", tokens=800, objective="grpo", beta=0.1, lora={"r": 8, "target_modules": "all-linear"}, dtype="bfloat16",
                             optimizer="adamw", chunk=128, keep="attention", offload="host", device="cuda")
        self.assert_same(prediction, record, "gemma3-cpu")


class Models(Case):
    def test_folder_config_and_object_agree(self):
        model = model_in_float64("qwen3")
        folder = predict(GOLDENS / "models/qwen3", tokens=64, dtype="float64", device="cpu")
        config = predict(model.config, tokens=64, dtype="float64", device="cpu")
        live = predict(model, tokens=64)
        for other in (config, live):
            self.assertEqual((other.peak_bytes, other.breakdown), (folder.peak_bytes, folder.breakdown))
        with torch.device("meta"):
            shapes = transformers.Qwen3ForCausalLM(model.config).to(torch.float64)
        self.assertEqual(predict(shapes, tokens=64, device="cpu").peak_bytes, folder.peak_bytes)
        batch = inputs_of(model)
        self.assertEqual(predict(model, batch).tokens, 56)

    def test_reference_and_teacher(self):
        alone = predict("qwen3-cpu", tokens=128, objective="dpo")
        with_reference = predict("qwen3-cpu", tokens=128, objective="dpo", reference="qwen3-cpu")
        self.assertGreater(with_reference.resident_bytes, alone.resident_bytes)
        released = predict("qwen3-cpu", tokens=128, objective="dpo", reference="qwen3-cpu", release_reference=True)
        self.assertEqual(released.resident_bytes, alone.resident_bytes)
        teacher = predict("qwen3-cpu", tokens=128, objective="distill", teacher=small_config(vocab_size=32000))
        self.assertGreater(teacher.resident_bytes, alone.resident_bytes)

    def test_longest(self):
        for budget, settings in (("600MB", {"device": "cpu"}), ("24GB", {"device": "cuda", "keep": "attention"})):
            name = "qwen3-cpu" if settings["device"] == "cpu" else "qwen3-1.7b"
            found = longest(name, budget, **settings)
            size = parse_bytes("budget", budget)
            if settings["device"] == "cuda":
                self.assertGreater(longest(name, budget, margin=0, **settings).seq_len, found.seq_len)
                size -= 1_000_000_000 + size // 50  # what the driver, libraries and fragmentation take
            self.assertTrue(found.fits)
            self.assertLessEqual(predict(name, tokens=found.seq_len, **settings).peak_bytes, size)
            self.assertGreater(predict(name, tokens=found.seq_len + found.resolution, **settings).peak_bytes, size)
            self.assertLessEqual(found.resolution, max(1, found.seq_len // 1000))
        none = longest("qwen3-cpu", "10MB", device="cpu")
        self.assertEqual((none.fits, none.seq_len), (False, 0))
        self.assertGreater(none.at_shortest.peak_bytes, 10_000_000)
        self.assertIn("no length fits", str(none))

    def test_suggest(self):
        found = suggest("qwen3-1.7b", "24GB", device="cuda", tokens=16384)
        self.assertTrue(found[-1].best and found[-1].fits)
        self.assertEqual([each.cost for each in found], sorted(each.cost for each in found))
        again = predict("qwen3-1.7b", tokens=16384, device="cuda", **found[-1].settings)
        self.assertEqual(again.peak_bytes, found[-1].at_longest.peak_bytes)

    def test_choose(self):
        on = {"tokens": 2048, "device": "cuda", "dtype": "float32"}
        none = choose("qwen3-cpu", budget="1MB", **on)
        self.assertFalse(none.fits)
        self.assertIn("nothing fits 1.00 MB", str(none))
        lean, rich = (choose("qwen3-cpu", budget=budget, **on) for budget in ("600MB", "100GB"))
        self.assertLessEqual(lean.prediction.peak_bytes, 600_000_000)
        self.assertEqual(predict("qwen3-cpu", **on, **lean.settings), lean.prediction)
        self.assertLess(rich.cost, lean.cost)
        record = bench_record("--model", "qwen3-cpu", "--seq-len", 2048, "--method", "auto", "--budget", "600MB", "--device", "meta:cuda")
        self.assertEqual((record["method"], record["chunk"]), (lean.settings["method"], lean.prediction.chunk))

    def test_what_was_chosen_runs(self):
        model = transformers.Qwen3ForCausalLM(small_config()).double()
        batch = batch_of(2, 300)
        budget = predict(model, batch, method="checkpoint").peak_bytes - 1
        choice = choose(model, batch, budget)
        self.assertNotIn(choice.settings["method"], ("standard", "checkpoint"))
        loss, info = sb.backward(model, batch, return_info=True, **choice.settings)
        self.assertEqual(info.chunk, choice.prediction.chunk)
        self.assertAlmostEqual(float(loss), float(sb.backward(model, batch)), delta=1e-12)
        self.assert_refused(lambda: sb.backward(model, batch, method="auto"), "choose(")


class GoodGuest(Case):
    def test_leaves_the_process_as_it_was(self):
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            first = predict("qwen3-cpu", tokens=256, device="cuda")
            self.assertEqual(torch.get_num_threads(), 2)
        finally:
            torch.set_num_threads(threads)
        kept = torch.empty(10**9, device="meta")
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            second = predict("qwen3-cpu", tokens=256, device="cuda")
        self.assertEqual(first, second)
        self.assertEqual(longest("qwen3-cpu", "600MB", device="cpu"), self.of_thread(lambda: longest("qwen3-cpu", "600MB", device="cpu")))
        del kept

    def of_thread(self, call):
        found = []
        worker = threading.Thread(target=lambda: found.append(call()))
        worker.start()
        worker.join()
        return found[0]

    def test_from_several_threads(self):
        alone = {tokens: predict("qwen3-cpu", tokens=tokens) for tokens in (128, 256, 384)}
        found = {}
        workers = [threading.Thread(target=lambda t=tokens: found.update({t: predict("qwen3-cpu", tokens=t)})) for tokens in alone]
        for worker in workers:
            worker.start()
        model = model_in_float64("qwen3")
        loss = sb.backward(model, inputs_of(model), chunk=7)
        for worker in workers:
            worker.join()
        self.assertEqual(found, alone)
        self.assertEqual(loss, sb.backward(model, inputs_of(model), chunk=7))

    def test_refusals(self):
        self.assert_refused(lambda: predict("qwen3-9000b", tokens=16), "qwen3-9000b", "streambp-bench models")
        self.assert_refused(lambda: predict("qwen3-8", tokens=16), "did you mean qwen3-8b")
        self.assert_refused(lambda: predict("qwen3-cpu"), "tokens")
        self.assert_refused(lambda: predict("qwen3-cpu", tokens=0), "tokens", "0")
        self.assert_refused(lambda: predict("qwen3-cpu", tokens=16, chunks=3), "chunks")
        self.assert_refused(lambda: predict("qwen3-cpu", tokens=16, chunk=-1), "chunk")
        self.assert_refused(lambda: predict("qwen3-cpu", tokens=16, objective="dop"), "dop", "dpo")
        self.assert_refused(lambda: predict("qwen3-cpu", tokens=16, objective="distill"), "teacher")
        self.assert_refused(lambda: predict("qwen3-cpu", tokens=16, optimizer="adan"), "adan", "adamw")
        self.assert_refused(lambda: predict("qwen3-cpu", tokens=16, device="tpu"), "tpu")
        self.assert_refused(lambda: predict(torch.nn.Linear(2, 2), tokens=16), "Linear")
        self.assert_refused(lambda: predict(3, tokens=16), "int")
        self.assert_refused(lambda: longest("qwen3-cpu", "80 apples"), "budget", "80 apples")
        self.assert_refused(lambda: predict("qwen3-cpu", tokens=16, micro_batches="x"), "micro_batches")


if __name__ == "__main__":
    unittest.main()
