"""The package without a model: what is loaded when, the library's version, names of parameters."""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
from python_case import ROOT, Case, model_in_float64

import streambp_bench as sb
from streambp_bench import _library
from streambp_bench._live_model.model import Weights, engine_of


def run_python(program, **environment):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env={**os.environ, **environment})


def installed(folder):
    """The package in `folder`, with library and programs as a wheel has them."""
    package = Path(folder) / "streambp_bench"
    shutil.copytree(Path(_library.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "lib"))
    (package / "lib").mkdir()
    built = _library.library_path().absolute()
    programs = built.parent.parent / "bin"
    for file in (built, built.with_suffix(".torch"), programs / "streambp-bench", programs / "streambp-verify"):
        (package / "lib" / file.name).symlink_to(file)
    return package


class Library(Case):
    def test_import_is_small(self):
        run = run_python("import sys, streambp_bench; print('torch' in sys.modules, sorted(streambp_bench.__all__))")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(run.stdout.startswith("False ["), run.stdout)
        for name in ("backward", "patch", "unpatch", "predict", "longest", "verify", "measure", "InputError"):
            self.assertIn(name, sb.__all__)
        with self.assertRaises(AttributeError):
            sb.forward

    def test_modules_import_one_another_in_a_line(self):
        folder = ROOT / "streambp/python/streambp_bench"
        files = {path for path in folder.rglob("*.py") if path.name != "__init__.py"}
        imports = {path: set() for path in files}
        for path in files:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level:
                    package = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                    imports[path] |= {package.with_suffix(".py"), *(package / f"{alias.name}.py" for alias in node.names)} & files
        self.assertGreater(sum(map(len, imports.values())), len(files))
        while imports:
            last = {name for name, needs in imports.items() if not needs & imports.keys()}
            self.assertTrue(last, f"a circle among {sorted(imports)}")
            imports = {name: needs for name, needs in imports.items() if name not in last}

    def test_no_library(self):
        with mock.patch.dict(os.environ, {"STREAMBP_TORCH_LIBRARY": "/nowhere/libstreambp_torch.so"}):
            self.assert_refused(_library.library_path, "/nowhere/libstreambp_torch.so", "scripts/python.sh")
        with mock.patch.dict(os.environ):
            del os.environ["STREAMBP_TORCH_LIBRARY"]
            if not (Path(_library.__file__).parent / "lib").exists():
                self.assert_refused(_library.library_path, "scripts/python.sh")

    def test_another_torch_is_refused_before_loading(self):
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "libstreambp_torch.so"
            library.write_bytes(b"not a library")
            library.with_suffix(".torch").write_text("2.10.1\n")
            message = self.assert_refused(lambda: _library._load(library), "2.10.1", torch.__version__, "pip install --no-build-isolation")
            self.assertNotIn("ELF", message)
            library.with_suffix(".torch").write_text(torch.__version__ + "\n")
            self.assert_refused(lambda: _library._load(library), "can't be loaded", "scripts/python.sh")

    def test_versions(self):
        _library.check_version('.'.join([*_library.major_minor(torch.__version__), '99']), "lib")
        self.assertEqual(_library.major_minor("2.11.0+cu130"), ("2", "11"))
        _library.library()
        _library.check_version(torch.ops.streambp.built_with(), "lib")

    def test_library_in_the_package(self):
        with tempfile.TemporaryDirectory() as folder:
            package = installed(folder)
            built = _library.library_path()
            program = "from streambp_bench._library import *; print(library_path()); library()"
            environment = {"PYTHONPATH": folder, "STREAMBP_TORCH_LIBRARY": "", "STREAMBP_METER": "off"}
            run = run_python(program, **environment)
            self.assertEqual((run.returncode, run.stdout.strip()), (0, str(package / "lib" / built.name)), run.stderr)


class PackageNames(Case):
    def test_former(self):
        run = run_python("import streambp, streambp_bench; print(streambp is streambp_bench)")
        self.assertEqual((run.returncode, run.stdout), (0, "True\n"), run.stderr)
        self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)
        self.assertIn("import streambp_bench", run.stderr)

    def test_next_to_the_authors_own(self):
        with tempfile.TemporaryDirectory() as folder:
            installed(folder)
            shutil.copy(ROOT / "streambp/python/streambp.py", folder)
            theirs = Path(folder) / "streambp"
            theirs.mkdir()
            (theirs / "__init__.py").write_text("whose = 'theirs'\n")
            run = run_python("import streambp, streambp_bench as sb; print(streambp.whose, sb.InputError)", PYTHONPATH=folder)
            self.assertEqual((run.returncode, run.stderr), (0, ""), run.stderr)
            self.assertIn("theirs", run.stdout)


class Programs(Case):
    """The commands of a wheel."""

    def test_run_with_this_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            package = installed(folder)
            for command, program in (("bench", "streambp-bench"), ("verify", "streambp-verify")):
                run = run_python(f"import sys; sys.argv[1:] = ['--version']; from streambp_bench._programs import {command}; {command}()", PYTHONPATH=folder)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertIn(torch.__version__.split("+")[0], run.stdout, program)
            (package / "lib/libstreambp_torch.torch").unlink()
            (package / "lib/libstreambp_torch.torch").write_text("2.10.1\n")
            self.assert_ends(folder, "2.10.1", torch.__version__)
            (package / "lib/streambp-bench").unlink()
            self.assert_ends(folder, "streambp-bench: no such file", "scripts/wheel.sh")

    def assert_ends(self, folder, *words):
        run = run_python("from streambp_bench._programs import bench; bench()", PYTHONPATH=folder)
        self.assertEqual((run.returncode, len(run.stderr.splitlines())), (2, 1), run.stderr)
        for word in words:
            self.assertIn(word, run.stderr)


class Scripts(Case):
    """What scripts/python.sh says where something is missing."""

    def run_script(self, *arguments, **environment):
        run = subprocess.run(arguments, capture_output=True, text=True, check=False, env={**os.environ, **environment})
        self.assertEqual(run.returncode, 2, run.stderr)
        return run.stderr.strip().splitlines()[-1]

    def test_environments_that_will_not_do(self):
        script = ROOT / "scripts/python.sh"
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("no virtual environment", self.run_script(script, folder))
            (Path(folder) / "bin").mkdir()
            python = Path(folder) / "bin/python"
            python.write_text("#!/bin/sh\nexec /usr/bin/python3 -S -E \"$@\"\n")
            python.chmod(0o755)
            message = self.run_script(script, folder)
            self.assertIn("no torch there", message)
            self.assertIn("pip install torch==", message)

    def test_no_torch_to_lend(self):
        with tempfile.TemporaryDirectory() as folder:
            message = self.run_script("/usr/bin/python3", ROOT / "scripts/python_environment.py", f"{folder}/new", STREAMBP_VENV=folder)
        self.assertIn("scripts/setup.sh", message)


class Names(Case):
    def test_of_layers_and_head_cover_the_engine_s(self):
        for name in ("llama-tied", "qwen3-moe", "phi3", "gemma3", "qwen3-score"):
            with self.subTest(model=name):
                weights = Weights(model_in_float64(name))
                engine = engine_of(weights)
                for i, layer in enumerate(weights.layers()):
                    names = weights.names_of(layer)
                    views = weights.views_of(names, weights.parameters(names).values())
                    self.assertEqual(sorted(views), sorted(engine.layer_parameters(i)))
                    self.assertTrue(all(tensor.is_contiguous() for tensor in views.values()))
                head = weights.head_names()
                self.assertEqual(sorted(weights.views_of(head, weights.parameters(head).values())), sorted(engine.head_parameters()))
                self.assertIs(engine_of(Weights(weights.base)), engine)

    def test_any_tensors_may_stand_for_parameters(self):
        weights = Weights(model_in_float64("qwen3-moe"))
        names = weights.names_of(weights.layers()[0])
        tensors = [torch.zeros_like(tensor) for tensor in weights.parameters(names).values()]
        views = weights.views_of(names, tensors)
        for view in views.values():
            view.add_(1.0)
        self.assertTrue(all((tensor == 1).all() for tensor in tensors))
        self.assertEqual(list(weights.views_of(names, [None] * len(names))), [])
        self.assert_refused(lambda: weights.names_of(torch.nn.Linear(1, 1)), "Linear")


if __name__ == "__main__":
    unittest.main()
