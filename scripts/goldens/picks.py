"""Cases of sparse attention whose tokens see columns, or blocks, that are given in place of those that indexers pick.

transformers' indexers run as they are, but what they return is the case's: drawn, or in cases called own_picks what they picked themselves in a pass
before, which changes nothing. Rows of nothing but -1 keep the indexer's own pick; what padding is given is never read.
"""

import json
import math

import torch

from goldens.batches import TWO_ROWS, packed
from goldens.blocks import blocks_that_are_picked, has_blocks
from goldens.checks import CheckError, check_finite_differences, check_results, check_weights
from goldens.models import MODELS
from goldens.passes import ResultCheck, evaluate, forward, gradients_of, load_model, read_tensors, relative_difference, worst
from goldens.recurrence import document_spans
from goldens.sft_case import describe, expected_numbers
from goldens.specs import BATCHES
from goldens.writing import make_inputs, save_case, write_model

# Of a case: the model, the batch, whether the picks are drawn, whether all layers are listed or those with indexers alone.
CASES = {
    "deepseek-v32-sft-drawn_picks": ("deepseek-v32", "b3_left", True, True),
    "deepseek-v32-sft-own_picks": ("deepseek-v32", "b3_right", False, False),
    "glm-moe-dsa-sft-drawn_picks": ("glm-moe-dsa", "b3_right", True, False),
    "glm-moe-dsa-sft-drawn_picks_packed": ("glm-moe-dsa", "packed", True, True),
    "hy-v4-sft-drawn_picks": ("hy-v4", "b3_left", True, False),
    "hy-v4-sft-own_picks": ("hy-v4", "b3_left", False, True),
    "deepseek-v4-sft-drawn_picks": ("deepseek-v4", "b3_left", True, True),
    "deepseek-v4-sft-own_picks": ("deepseek-v4", "b3_right", False, False),
    "glm5-next-sft-drawn_picks": ("glm5-next", "b3_left", True, True),
    "glm5-next-sft-own_picks": ("glm5-next", "b3_right", False, False),
}
SEEDS = {name: 140_000 + i for i, name in enumerate(CASES)}


def indexers_of(model):
    """Of each layer its indexer, or None."""
    return [next((module for name, module in layer.named_modules() if name.endswith(".indexer")), None) for layer in model.model.layers]


class GivenPicks:
    """While it is on, the indexers of `model` return `indices` [B, T, layers with indexers, k] for `inputs`; `own` has what they picked in the last pass.

    Of DeepSeek V4, whose documents run one after another (goldens/blocks.py), numbers of blocks; of GLM-5.3, of padded rows, numbers of groups, whose columns
    the indexers return with those of the group that has not ended; of others columns.
    """

    def __init__(self, model, inputs, indices=None):
        self.model, self.indices, self.hooks, self.own, self.calls = model, indices, [], [], {}
        self.spans = [(row, begin, end) for row, spans in enumerate(document_spans(inputs)) for begin, end in spans]
        self.indexers = [module for module in indexers_of(model) if module is not None]
        if indices is not None and len(self.indexers) != indices.shape[2]:
            raise CheckError(f"{len(self.indexers)} indexers, expected {indices.shape[2]}")

    def __enter__(self):
        self.hooks.append(self.model.model.register_forward_pre_hook(self._begin))
        for index, module in enumerate(self.indexers):
            self.hooks.append(module.register_forward_hook(lambda *given, index=index: self._returned(index, given[-1])))
        return self

    def __exit__(self, *given):
        for hook in self.hooks:
            hook.remove()

    def _begin(self, *given):
        self.calls = dict.fromkeys(range(len(self.indexers)), 0)
        self.own = [[] for _ in self.indexers]

    def _returned(self, index, own):
        self.own[index].append(own.detach().clone())
        call = self.calls[index]
        self.calls[index] += 1
        if self.indices is None:
            return None
        given = self.indices[:, :, index]
        if is_grouped(self.model):
            given = columns_of_groups(self.model, self.spans, given)
        if own.shape[:2] != given.shape[:2]:  # a document of a row
            row, begin, end = self.spans[call]
            given = given[row : row + 1, begin:end]
        width = max(own.shape[-1], given.shape[-1])
        if width == 0:
            return None
        own, given = (torch.nn.functional.pad(x.long(), (0, width - x.shape[-1]), value=-1) for x in (own, given))
        result = torch.where((given < 0).all(-1, keepdim=True), own, given)
        if is_grouped(self.model):
            return result.int()
        if not has_blocks(self.model):  # columns are scattered into a mask, once or more
            result = torch.where(result < 0, result.max(-1, keepdim=True).values, result)
        return result.int() if not has_blocks(self.model) else result


def is_grouped(model):
    return model.config.model_type == "glm5_next_text"


def block_rate(model):
    if is_grouped(model):
        return model.config.index_kpool
    return model.config.compress_rates["compressed_sparse_attention"] if has_blocks(model) else 1


def columns_of_groups(model, spans, groups):
    """[B, T, W]: the columns of groups [B, T, k] of padded rows, and of each token's own group that has not ended; -1 where no group is given."""
    rate = block_rate(model)
    columns = torch.full((*groups.shape[:2], model.config.index_topk + rate - 1), -1)
    for row, begin, end in spans:
        for column in range(begin, end):
            given = [number for number in groups[row, column].tolist() if number >= 0]
            seen = [begin + number * rate + place for number in given for place in range(rate)]
            if given:
                seen += range(begin + (column + 1 - begin) // rate * rate, column + 1)
            columns[row, column, : len(seen)] = torch.tensor(seen, dtype=torch.int64)
    return columns


def groups_of_columns(model, spans, columns, count):
    """The reverse, [B, T, k], of what indexers return [B, T, W], of groups that `count` says have ended."""
    rate = block_rate(model)
    groups = torch.full((*columns.shape[:2], blocks_that_are_picked(model.config)), -1)
    for row, begin, end in spans:
        for column in range(begin, end):
            own = [value - begin for value in columns[row, column].tolist() if value >= 0]
            firsts = [value // rate for value in own if value % rate == 0 and value < rate * int(count[row, column])]
            groups[row, column, : len(firsts)] = torch.tensor(firsts, dtype=torch.int64)
    return groups


def candidates(model, inputs):
    """[B, T]: the first number that stands for something each token may see, and how many there are; none of padding."""
    rows, columns = inputs["input_ids"].shape
    first, count = (torch.zeros(rows, columns, dtype=torch.int64) for _ in range(2))
    for row, spans in enumerate(document_spans(inputs)):
        for begin, end in spans:
            first[row, begin:end] = 0 if has_blocks(model) else begin
            count[row, begin:end] = torch.arange(1, end - begin + 1) // block_rate(model)
    return first, count


def drawn_picks(model, inputs, generator, leaves_some=True):
    """[B, T, layers with indexers, k]: of each token 1 to k different ones of what it may see; -1 of some documents' last tokens, where `leaves_some`."""
    first, count = candidates(model, inputs)
    rows, columns = first.shape
    layers, k = sum(module is not None for module in indexers_of(model)), blocks_that_are_picked(model.config)
    picks = torch.full((rows, columns, layers, k), -1)
    ends = {(row, end - 1) for row, spans in enumerate(document_spans(inputs)) for _, end in spans}
    for row in range(rows):
        for column in range(columns):
            for layer in range(layers):
                may = int(count[row, column])
                if may == 0 or (leaves_some and (row, column) in ends and (row + layer) % 2 == 0):
                    continue
                most = min(may, k)
                many = int(torch.randint(1, most + 1, (1,), generator=generator))
                places = torch.randperm(k, generator=generator)[:many]
                picks[row, column, layer, places] = first[row, column] + torch.randperm(may, generator=generator)[:many]
    return picks


def own_picks(model, inputs):
    """[B, T, layers with indexers, k]: what the indexers pick themselves, -1 for what their attention's mask hides."""
    with torch.no_grad(), GivenPicks(model, inputs) as picking:
        forward(model, inputs)
    first, count = candidates(model, inputs)
    if is_grouped(model):
        return torch.stack([groups_of_columns(model, picking.spans, own, count) for (own,) in picking.own], dim=2)
    rows, columns = first.shape
    picks = torch.full((rows, columns, len(picking.own), model.config.index_topk), -1)
    for layer, calls in enumerate(picking.own):
        spans = [(row, 0, columns) for row in range(rows)] if len(calls) == 1 else picking.spans
        of_rows = list(calls[0].split(1)) if len(calls) == 1 else calls
        for (row, begin, end), own in zip(spans, of_rows, strict=True):
            picks[row, begin:end, layer, : own.shape[-1]] = own[0].long()
    first, count = (x[:, :, None, None] for x in (first, count))
    return picks.masked_fill((picks < first) | (picks >= first + count), -1)


def inputs_of_batch(batch_name, vocab_size, generator):
    if batch_name == "packed":
        return packed(TWO_ROWS)(vocab_size, generator)
    return make_inputs(BATCHES[batch_name], vocab_size, generator)


def make_case(root, name):
    model_name, batch_name, is_drawn, of_all = CASES[name]
    spec = MODELS[model_name]
    folder = root / "models" / model_name
    if not folder.exists():
        write_model(folder, spec)
    generator = torch.Generator().manual_seed(SEEDS[name])
    inputs = inputs_of_batch(batch_name, json.loads((folder / "config.json").read_text())["vocab_size"], generator)
    model = load_model(folder)
    own = own_picks(model, inputs)
    picks = drawn_picks(model, inputs, generator) if is_drawn else own
    with ResultCheck() as results, GivenPicks(model, inputs, picks):
        outputs, tensors = evaluate(model, inputs)
    unchanged = evaluate(model, inputs)[1]
    padding = "none" if batch_name == "packed" else BATCHES[batch_name].padding
    case = describe(name, model_name, spec.model_type, name.rpartition("-sft-")[2], padding=padding, position_ids="see position_ids" if batch_name == "packed" else "arange")
    case["source"]["indexer_indices"] = "transformers' indexers return the case's indices"
    with GivenPicks(model, inputs, picks):
        case["expected"] = expected_numbers(model, inputs, outputs, tensors)
        differences = check_finite_differences(model, inputs, gradients_of(tensors), generator)
    changed = worst([relative_difference(gradient, gradients_of(unchanged)[key]) for key, gradient in gradients_of(tensors).items()])
    given = picks.ge(0).any(-1)
    others = int((picks.sort(-1).values != own.sort(-1).values).any(-1)[given].sum())
    if math.isnan(changed) or not (others > given.shape[1] and changed > 1e-2 if is_drawn else others == 0 and changed == 0.0):
        raise CheckError(f"{name}: {others} tokens see others than their indexers', gradients change by {changed}")
    case["checks"] = {
        **check_results(results),
        **check_weights(model, tensors, read_tensors(folder / "model.safetensors")),
        "finite_difference": differences,
        "picks": {"given": int(given.sum()), "others_than_the_indexers": others, "largest_change_of_a_gradient": changed},
    }
    # In the file: of every layer, or of those with indexers; of padding and of other layers what no token can see.
    has_indexer = torch.tensor([module is not None for module in indexers_of(model)])
    written = torch.full((*picks.shape[:2], len(has_indexer) if of_all else picks.shape[2], picks.shape[3]), -7)
    written[:, :, has_indexer if of_all else slice(None)] = picks
    if "attention_mask" in inputs:
        written[inputs["attention_mask"] == 0] = 99
    save_case(root, case, {**tensors, "in.indexer_indices": written})


def make(root, names):
    """DIR/cases/<case> for CASES, or those of the models `names`."""
    for name in CASES:
        if not names or CASES[name][0] in names:
            make_case(root, name)
