"""Exact gradients as a pytest assertion. Loaded by pytest where the package is installed (elsewhere: -p streambp_bench.pytest_plugin).

    def test_my_loss(assert_exact_gradients):
        assert_exact_gradients(model, batch, loss=my_loss)                             # my_loss(model, batch) -> scalar, run backward here
        assert_exact_gradients(model, batch, "dpo", gradients="grad", beta=0.1)        # what .grad holds, of whatever has filled it

--streambp-report FILE gets a line of JSON for each judgement.
"""

import dataclasses
import json
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.getgroup("streambp").addoption("--streambp-report", metavar="FILE", help="a line of JSON for each judgement of assert_exact_gradients")


@pytest.fixture
def assert_exact_gradients(request):
    """A function (model, batch, objective="sft", *, loss=None, gradients=None, diagnose=True, **options) -> Report of verify().

    Judges gradients against the float64 truth of `objective`, and fails the test with the report, and what the mistake is, unless they are exact as far
    as their dtype shows. loss: a function (model, batch) -> a scalar whose gradients are judged; .grad is afterwards what it was. gradients: as verify() has
    them. Gradients that are all zero are no evidence, and fail as well. The rest: as verify() takes it.
    """
    from ._library import InputError
    from ._verify import verify

    def judge(model, batch, objective="sft", *, loss=None, gradients=None, diagnose=True, **options):
        __tracebackhide__ = True
        if loss is not None and gradients is not None:
            raise InputError("loss and gradients: both are given, expected one")
        if loss is not None:
            gradients = _gradients_of(model, batch, loss)
        if isinstance(gradients, dict) and not any(bool(each.any()) for each in gradients.values() if each is not None):
            pytest.fail("all gradients are zero, which shows nothing", pytrace=False)
        report = verify(model, batch, objective, gradients=gradients, **options)
        if diagnose and not report.exact and report.verdict != "undecided":
            report = verify(model, batch, objective, gradients=gradients, diagnose=True, **options)
        if path := request.config.getoption("--streambp-report"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"test": request.node.nodeid, "objective": objective, **dataclasses.asdict(report)}) + "\n")
        if not report.exact:
            pytest.fail(str(report), pytrace=False)
        return report

    return judge


def _gradients_of(model, batch, loss):
    """{name: gradient} of a loss, from None; .grad stays as it is."""
    from ._verify import gradients_apart

    with gradients_apart(model.parameters()):
        loss(model, batch).backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
