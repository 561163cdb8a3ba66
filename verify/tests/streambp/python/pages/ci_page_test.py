#!/usr/bin/env python3
"""verify/ci.md: its workflow is YAML as GitHub reads it, and the commands of its steps do what the page says, with its own test file."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

import yaml
from python_case import GOLDENS, ROOT, Case

PAGE = (ROOT / "verify/ci.md").read_text()
PROGRAM = Path(os.environ["STREAMBP_TORCH_LIBRARY"]).parents[1] / "bin/streambp-verify"


def block(language):
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


class Page(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        workflow = yaml.safe_load(block("yaml"))
        self.assertEqual(workflow[True], ["push", "pull_request"])  # YAML 1.1's "on"
        self.steps = {step["name"]: step["run"] for step in workflow["jobs"]["gradients"]["steps"] if "run" in step}
        case = GOLDENS / "cases/qwen3-sft-b3_left/tensors.safetensors"
        for name in ("batch", "theirs"):
            shutil.copyfile(case, self.folder / f"{name}.safetensors")
        (self.folder / "model").symlink_to(GOLDENS / "models/qwen3")
        (self.folder / "tests").mkdir()
        self.test_file = self.folder / "tests/test_gradients.py"
        self.test_file.write_text(block("python"))
        programs = self.folder / ".venv/bin"
        programs.mkdir(parents=True)
        (programs / "streambp-verify").symlink_to(PROGRAM)
        python = programs / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" -p streambp_bench.pytest_plugin -p no:cacheprovider\n')
        python.chmod(0o755)

    def run_step(self, name, code):
        ran = subprocess.run(["bash", "-e", "-c", self.steps[name]], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran.stdout

    def cases(self, name):
        """{name: the failure's message, or None}."""
        suite = next(xml.etree.ElementTree.parse(self.folder / name).getroot().iter("testsuite"))
        found = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
        self.assertEqual(int(suite.get("tests")), len(found))
        self.assertEqual(int(suite.get("failures")), sum(each is not None for each in found.values()))
        return {case: None if failure is None else failure.get("message") + (failure.text or "") for case, failure in found.items()}

    def test_steps_as_they_are(self):
        self.assertEqual(set(self.steps), {"build the judge", "my losses, in pytest", "gradients that a training run has written"})
        for line in self.steps["build the judge"].splitlines():
            for script in re.findall(r"scripts/\w+\.sh", line):
                self.assertTrue((ROOT / script).is_file(), script)
        self.run_step("gradients that a training run has written", 0)
        found = self.cases("compare.xml")
        self.assertEqual((len(found), set(found.values())), (26, {None}))

    def test_pytest(self):
        self.test_file.write_text(block("python") + block("python").replace("my_loss", "no_loss").replace(".loss\n", ".loss * 0\n"))
        self.run_step("my losses, in pytest", 1)
        found = self.cases("pytest.xml")
        self.assertIn("shows nothing", found.pop("test_no_loss"))
        self.assertEqual(found, {"test_my_loss": None})

    def test_wrong_gradients(self):
        shutil.copyfile(GOLDENS / "cases/qwen3-sft-b1/tensors.safetensors", self.folder / "batch.safetensors")
        self.run_step("gradients that a training run has written", 1)
        found = self.cases("compare.xml")
        self.assertTrue(found["verdict"].startswith("wrong"), found["verdict"])
        self.assertIn("diagnosis: ", found["verdict"])
        self.assertIn("error ", found["model.norm.weight"])


if __name__ == "__main__":
    unittest.main()
