"""The program that answers what a step would take: kept between questions, started anew where it has ended or would answer otherwise."""

import os
import tempfile
import unittest
from unittest import mock

import streambp_bench as sb
from python_case import Case
from streambp_bench import _planner


def peak(tokens=64):
    return sb.predict("qwen3-tiny", tokens=tokens).beyond_resident


def running():
    return _planner._kept[1]


class Planner(Case):
    def test_is_kept(self):
        expected, process = peak(), running()
        self.assertNotEqual(peak(128), expected)
        self.assert_refused(lambda: sb.predict("qwen3-tiny", tokens=0), "tokens")
        self.assert_refused(lambda: sb.predict("qwen3-9000b", tokens=16), "qwen3-9000b")
        self.assertEqual(peak(), expected)
        self.assertIs(running(), process)

    def test_is_started_anew_where_it_has_ended(self):
        expected = peak()
        for end in ("kill", "terminate"):
            process = running()
            getattr(process, end)()
            self.assertEqual(peak(), expected)
            self.assertIsNot(running(), process)

    def test_is_another_where_it_would_answer_otherwise(self):
        expected, process = peak(), running()
        with mock.patch.dict(os.environ, {"STREAMBP_OF_A_TEST": "1"}):
            self.assertEqual(peak(), expected)
            self.assertIsNot(running(), process)
        process, here = running(), os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                self.assertEqual(peak(), expected)
            finally:
                os.chdir(here)
        self.assertIsNot(running(), process)

    def test_a_child_process_has_its_own(self):
        expected, process = peak(), running()
        child = os.fork()
        if child == 0:
            os._exit(0 if _planner._kept is None and peak() == expected and running().pid != process.pid else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(peak(), expected)
        self.assertIs(running(), process)

    def test_what_is_interrupted_leaves_no_answer_behind(self):
        expected = peak()
        with mock.patch.object(running().stdout, "readline", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            peak(128)
        self.assertEqual(peak(), expected)

    def test_says_why_it_failed(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, _planner.PROGRAM)
            with open(program, "w") as file:
                file.write("#!/bin/sh\necho no libraries >&2\nexit 3\n")
            os.chmod(program, 0o755)
            with mock.patch.object(_planner, "library_path", lambda: _planner.Path(folder) / "libstreambp_torch.so"):
                with self.assertRaisesRegex(RuntimeError, "streambp_plan: no libraries"):
                    peak()
        self.assertGreater(peak(), 0)


if __name__ == "__main__":
    unittest.main()
