#!/usr/bin/env python3
"""sb.summary(), Callback and what predict() says of a model that runs by its own code."""

import tempfile
import unittest

import streambp_bench as sb
import torch
import transformers
from module_lane_test import everything_in_float64, model_of
from patching import batch_of, tiny
from python_case import ROOT, Case
from streambp_bench._replaced import patched_state


class Summary(Case):
    def test_of_the_engine(self):
        model = sb.patch(tiny(), chunk=7)
        text = str(sb.summary(model))
        for words in ("Qwen3DecoderLayer", "engine", "head", "chunk 7, head_chunk auto, attention sdpa"):
            self.assertIn(words, text)
        self.assertNotIn("own code", text)
        with torch.autocast("cpu", torch.bfloat16):
            model(**batch_of(61, (9,)))
        self.assertIn("where the engine refuses: own code", str(sb.summary(model)))

    def test_of_the_model_s_own_code(self):
        with everything_in_float64():
            model = sb.patch(model_of("phi"), lane="module", head_chunk=9)
        found = sb.summary(model)
        self.assertEqual([row[:3] for row in found.rows], [("PhiDecoderLayer", 4, "own code"), ("head", 1, "own code")])
        self.assertTrue(all("proved on 33 rows" in row[3] for row in found.rows), found.rows)
        self.assertEqual(found.head_chunk, 9)
        model.lm_head.register_forward_hook(lambda module, args, output: output)
        self.assertEqual(sb.summary(model).rows[-1][2:], ("own code, whole", "lm_head has a hook, which would be called for each chunk"))

    def test_of_a_step(self):
        sb.load()
        model = sb.patch(tiny(), chunk=7)
        found = sb.summary(model, batch_of(61, (40,)))
        self.assertGreater(found.peak_bytes, 0)
        self.assertGreater(found.seconds, 0)
        self.assertRegex(str(found), r"a step: .*B beyond its start, [0-9.e-]+ s")
        self.assertTrue(all(each.grad is not None for each in model.parameters()))
        self.assert_refused(lambda: sb.summary(model, {"input_ids": torch.zeros(1, 4, dtype=torch.int64)}), "labels")

    def test_of_what_is_not_patched(self):
        self.assert_refused(lambda: sb.summary(tiny()), "not patched")
        self.assert_refused(lambda: sb.summary("a/model"), "not patched")

    def test_a_callback_patches_while_it_trains(self):
        rows = [{key: value[0] for key, value in batch_of(61, (14,), seed=i).items()} for i in range(4)]
        seen = []

        class Watches(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, model=None, **kwargs):
                seen.append(patched_state(model).chunk)

        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(output_dir=folder, max_steps=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True)
            trainer = transformers.Trainer(model=tiny(), args=arguments, train_dataset=rows, callbacks=[sb.Callback(chunk=5), Watches()])
            trainer.train()
        self.assertEqual(seen, [5, 5])
        self.assertIsNone(patched_state(trainer.model))

    def test_predictions_are_the_engine_s(self):
        model = sb.patch(tiny(), lane="module", prove=False)
        with self.assertLogs("streambp_bench") as caught:
            self.assertGreater(sb.predict(model, tokens=64).peak_bytes, 0)
        self.assertIn("by its own code", caught.output[0])
        sb.unpatch(model)
        with self.assertNoLogs("streambp_bench"):
            sb.predict(model, tokens=64)

    def test_one_version(self):
        for page, line in (("CMakeLists.txt", f"VERSION {sb.__version__} "), ("CITATION.cff", f"version: {sb.__version__}\n")):
            self.assertIn(line, (ROOT / page).read_text(), page)


if __name__ == "__main__":
    unittest.main()
