"""What case.json says of an SFT case."""

import math

from goldens.passes import IGNORED, forward, gradients_of
from goldens.versions import installed
from goldens.writing import describe_case

VERSIONS = installed("torch", "transformers")


def expected_numbers(model, inputs, outputs, tensors):
    """The scalars of case.json."""
    loss, labels = tensors["out.loss"].item(), int((inputs["labels"][:, 1:] != IGNORED).sum())
    squares = sum((gradient**2).sum().item() for gradient in gradients_of(tensors).values())
    expected = {"loss": loss, "grad_norm": math.sqrt(squares), "num_valid_labels": labels}
    if outputs.get("aux_loss") is not None:
        # This part isn't divided by the number of labels, so no single factor leads to another divisor's gradients.
        expected["aux_loss"] = outputs.aux_loss.item()
        expected["cross_entropy"] = -tensors["out.per_token_logps"].sum().item() / labels
        return expected
    items = 2 * labels + 3
    expected["loss_sum"] = loss * labels
    expected["num_items_in_batch"] = items
    expected["loss_with_num_items_in_batch"] = forward(model, inputs, num_items_in_batch=items).loss.item()
    expected["gradient_factor_with_num_items_in_batch"] = labels / items
    return expected


def describe(name, model, model_type, variant, **hyperparameters):
    """What case.json says before any number."""
    source = {
        "peer": "transformers: <Model>ForCausalLM.forward(labels=...) -> loss/loss_utils.py ForCausalLMLoss",
        "gradient": "torch.autograd through transformers' modules",
        "per_token_logps": "torch log_softmax of transformers' logits",
    }
    settings = {"ignore_index": IGNORED, "reduction": "mean over labels != -100", **hyperparameters}
    return describe_case(name, model, model_type, "sft", variant, settings, source, VERSIONS)
