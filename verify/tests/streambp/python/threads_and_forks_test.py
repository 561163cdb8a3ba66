"""Steps from several threads at once, and processes that are forked while the library is at work."""

import os
import threading
import time
import unittest

import torch
import transformers
from patching import difference, gradients, patched, step, tiny
from python_case import Case, inputs_of, model_in_float64, take_gradients
from streambp_bench._replaced import patched_state

import streambp_bench as sb

FEWER = 1 if os.environ.get("STREAMBP_THOROUGH") else 8  # repetitions than in a nightly run
CHILD_SECONDS = 20  # after which a forked process hangs; it needs a fraction of one


def child_ends(work):
    """Whether a forked process that calls `work` ends well, and in time."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    deadline = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.001)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


class Busy:
    """A thread that calls `work` as long as the block lasts."""

    def __init__(self, work):
        self._work, self._done = work, False
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._done:
            self._work()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done = True
        self._thread.join()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((300000,), float(index))


class ThreadsAndForks(Case):
    @classmethod
    def setUpClass(cls):
        sb.load()
        cls.model = model_in_float64("qwen3")
        cls.batch = inputs_of(cls.model)

    def step(self):
        return sb.backward(self.model, self.batch)

    def test_two_threads_lose_no_gradient(self):
        self.step()
        once = take_gradients(self.model)
        for _ in range(60 // FEWER):
            start = threading.Barrier(2)

            def one_step(start=start):
                start.wait()
                self.step()

            threads = [threading.Thread(target=one_step) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            twice = take_gradients(self.model)
            self.assert_gradients(twice, {name: 2 * gradient for name, gradient in once.items()}, "two threads", 1e-12)

    def steps_in_threads(self, *steps):
        """Calls each of `steps` again and again, in a thread of its own."""
        start, errors = threading.Barrier(len(steps)), []

        def work(step):
            start.wait()
            try:
                for _ in range(80 // FEWER):
                    step()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        return 80 // FEWER

    def test_threads_share_a_patched_model(self):
        """A config's attention is one for all threads, and what the engine leaves to the model's own code another thread may have the engine do."""
        plain = tiny()
        alone = transformers.Qwen3ForCausalLM(plain.config).train()  # shares the config, and is not patched
        ids = torch.randint(3, 61, (2, 17), generator=torch.Generator().manual_seed(1))
        batch = {"input_ids": ids, "labels": ids}
        for lane, others in (("module", {}), ("auto", {"output_hidden_states": True})):  # which the engine refuses
            with patched(plain, lane=lane, chunk=4):
                wanted, of_alone = [step(model, batch, **more)[1] for model, more in ((plain, others), (alone, {}))]
                plain.zero_grad(), alone.zero_grad()
                count = self.steps_in_threads(lambda: plain(**batch).loss.backward(), lambda others=others: plain(**batch, **others).loss.backward(),
                                              lambda: alone(**batch).loss.backward())
                for model, expected, times in ((plain, wanted, 2 * count), (alone, of_alone, count)):
                    self.assertTrue(difference({name: each / times for name, each in gradients(model).items()}, expected) <= 1e-5, lane)
            self.assertEqual(plain.config._attn_implementation, "sdpa")
            self.assertIsNone(patched_state(plain))

    def test_forked_processes_allocate(self):
        with Busy(lambda: torch.empty(300000)):
            for i in range(500 // FEWER):
                self.assertTrue(child_ends(lambda: torch.empty(300000)), f"child {i} hangs")

    def test_a_process_forked_during_a_step_takes_one(self):
        expected = self.step()
        take_gradients(self.model)

        def step_in_child():
            self.model.zero_grad(set_to_none=True)
            if not abs(self.step() - expected) <= 1e-12:
                os._exit(2)

        with Busy(self.step):
            for i in range(40 // FEWER):
                self.assertTrue(child_ends(step_in_child), f"child {i} hangs or fails")
        take_gradients(self.model)

    def test_a_data_loader_has_workers(self):
        with Busy(lambda: torch.empty(300000)):
            for _ in range(3):
                loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, timeout=CHILD_SECONDS)
                self.assertEqual([batch[0, 0].item() for batch in loader], [0.0, 2.0, 4.0, 6.0])


if __name__ == "__main__":
    unittest.main()
