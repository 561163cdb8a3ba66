#!/usr/bin/env python3
"""sb.patch(model, lane="module"): decoders streamed by their own code give their own gradients, in float64, whatever is in their layers; a
layer whose rows meet outside its cache is found by the proof and runs whole."""

import contextlib
import copy
import unittest
import warnings

import streambp_bench as sb
import torch
import transformers
from any_model import difference, small_config
from goldens.passes import InFloat64
from patching import batch_of, packed_batch, relative, step, tiny
from python_case import Case, in_float64
from streambp_bench._module_lane import node
from streambp_bench._replaced import patched_state

LIMIT = 1e-9
CHUNKS = (1, 6, 7, 23, 40)
FAMILIES = ("llama", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "mixtral", "phi", "gpt2", "gpt_neox", "olmo", "cohere", "starcoder2", "granite",
            "qwen3_next", "qwen3_5_text", "bloom")
CLASSES = {"llama4_text": "Llama4ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "gpt2": "GPT2LMHeadModel", "gpt_oss": "GptOssForCausalLM", "gpt_neox": "GPTNeoXForCausalLM",
           "qwen3_next": "Qwen3NextForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM"}
PACKED = ("llama", "qwen3", "gemma2", "mixtral", "cohere", "granite")
warnings.simplefilter("ignore")


@contextlib.contextmanager
def everything_in_float64():
    """in_float64(), in backward passes as well."""
    node.around = InFloat64
    try:
        with in_float64():
            yield
    finally:
        node.around = contextlib.nullcontext


def model_of(family, attention="eager", seed=0, made_with=None, **settings):
    """A small model with weights that matter, in float64. made_with: settings that its config is made with; settings: set on the config that is made."""
    torch.manual_seed(seed)
    with in_float64():
        config = small_config(family, (), made_with)
        config._attn_implementation = attention
        for name, value in settings.items():
            setattr(config, name, value)
        model = getattr(transformers, CLASSES.get(family, f"{family.title()}ForCausalLM"))(config).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.15)
    return model.train()


@contextlib.contextmanager
def streamed(model, chunk=7, **settings):
    sb.patch(model, lane="module", chunk=chunk, **settings)
    try:
        yield model
    finally:
        sb.unpatch(model)


def lanes(model):
    return {proof.lane for proof in sb.prove(model)}


class PlantedLayer(transformers.models.llama.modeling_llama.LlamaDecoderLayer):
    """Its rows see the row before them outside the cache."""

    def forward(self, hidden_states, *args, **kwargs):
        output = super().forward(hidden_states, *args, **kwargs)
        return output + 0.5 * torch.nn.functional.pad(hidden_states[:, :-1], (0, 0, 1, 0))


class ModuleLane(Case):
    def compare(self, model, batch, what, chunks=CHUNKS, lane="module", limit=LIMIT, **settings):
        """The worst error over chunks, of loss and gradients."""
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False)
            for chunk in chunks:
                with streamed(model, chunk, **{"prove": lane != "module" or chunk == chunks[0]} | settings):  # a proof takes longer than a step
                    table = patched_state(model).table
                    self.assertEqual({proof.lane for proof in table or ()}, {lane} if table is not None else set(), f"{what}\n{table}")
                    ours_loss, ours = step(model, batch)
                error = max(relative(ours_loss, loss), difference(ours, theirs))
                self.assertTrue(error <= limit, f"{what}, chunk {chunk}: {error:.1e}")
                type(self).reached = max(self.reached, error)

    def test_families_and_padding(self):
        for family in FAMILIES:
            model = model_of(family)
            self.compare(model, batch_of(61, (23, 15), "left"), f"{family}, left", chunks=self.turns(CHUNKS, 1))
            self.compare(model, batch_of(61, (23, 15), "right"), f"{family}, right", chunks=self.turns((6, 23), 1), prove=False)

    def test_sdpa_with_and_without_a_mask(self):
        for family in ("llama", "gemma3_text", "phi", "gpt2"):
            model = model_of(family, "sdpa")
            self.compare(model, batch_of(61, (23, 15), "left"), f"{family}, left, sdpa", chunks=self.turns(CHUNKS, 2))
            batch = batch_of(61, (23, 23))
            del batch["attention_mask"]
            self.compare(model, batch, f"{family}, no mask, sdpa", chunks=self.turns(CHUNKS, 2), prove=False)

    def test_packed(self):
        for family in PACKED:
            self.compare(model_of(family), packed_batch(61, (9, 10, 4)), f"{family}, packed", chunks=self.turns(CHUNKS, 2))

    def test_a_proof_leaves_the_model_as_it_was(self):
        # Frequencies of the longest row seen so far, which the proof's rows would be.
        dynamic = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}, "max_position_embeddings": 8}
        model = model_of("llama", made_with=dynamic)
        self.compare(model, batch_of(61, (23, 15)), "dynamic frequencies", chunks=(6, 23))
        self.assertEqual(int(model.model.rotary_emb.max_seq_len_cached), 23)

    def test_rows_as_long_as_other_axes(self):
        for tokens in (2, 4, 8, 32):  # the batch, the heads, a head's size, a row's size
            self.compare(model_of("llama"), batch_of(61, (tokens, tokens)), f"{tokens} tokens", chunks=(1, 3))
            self.compare(model_of("llama", "sdpa"), batch_of(61, (tokens, tokens)), f"{tokens} tokens", chunks=(1, 3), prove=False)

    def test_adapters_and_dora(self):
        from peft import LoraConfig, get_peft_model

        for dora in (False, True):
            with in_float64():
                model = get_peft_model(model_of("qwen3"), LoraConfig(r=3, target_modules="all-linear", use_dora=dora, init_lora_weights=False)).double()
            self.compare(model, batch_of(61, (23, 15)), f"adapters, dora {dora}")

    def test_float32_adapters_on_a_bfloat16_base(self):
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        base = tiny(dtype=torch.float32).to(torch.bfloat16)
        model = get_peft_model(base, LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False)).train()
        self.assertEqual({each.dtype for each in model.parameters()}, {torch.bfloat16, torch.float32})
        self.against_wide(model, copy.deepcopy(model).float(), batch_of(61, (23, 15)))

    def test_autocast(self):
        model = tiny()
        self.against_wide(model, copy.deepcopy(model), batch_of(61, (23, 15)), lambda: torch.autocast("cpu", torch.bfloat16))

    def against_wide(self, model, wide, batch, context=contextlib.nullcontext):
        """As far from float32 as the model's own gradients are."""
        _, truth = step(wide, batch, use_cache=False)

        def distance(found):
            return max(float((found[name].float() - truth[name]).norm() / truth[name].norm().clamp_min(1e-6)) for name in truth)

        with context():
            loss, theirs = step(model, batch, use_cache=False)
            self.assertEqual(lanes(model), {"module"})
            with streamed(model):
                ours_loss, ours = step(model, batch)
        self.assertTrue(relative(ours_loss, loss) <= 5e-3, (ours_loss, loss))
        self.assertTrue(distance(ours) <= 1.5 * distance(theirs), (distance(ours), distance(theirs)))

    def test_dropout_is_drawn_once(self):
        model = model_of("gpt2", attn_pdrop=0.3, resid_pdrop=0.2)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.25
        batch = batch_of(61, (23, 15))
        with everything_in_float64(), streamed(model):
            torch.manual_seed(7)
            loss, gradients = step(model, batch)
            after = torch.get_rng_state()
            moves = {name: torch.randn(each.shape) for name, each in model.named_parameters()}
            slope = sum(float((gradients[name] * moves[name]).sum()) for name in gradients)
            losses = []
            for sign in (1e-5, -1e-5):
                with torch.no_grad():
                    for name, each in model.named_parameters():
                        each.add_(sign * moves[name])
                torch.manual_seed(7)
                losses.append(model(**batch).loss.item())
                with torch.no_grad():
                    for name, each in model.named_parameters():
                        each.sub_(sign * moves[name])
            torch.manual_seed(7)
            model(**batch)
            self.assertTrue(torch.equal(torch.get_rng_state(), after), "the backward pass leaves the random state")
        measured = (losses[0] - losses[1]) / 2e-5
        self.assertTrue(abs(measured - slope) <= 1e-6 * abs(slope), (measured, slope))
        self.assertNotEqual(loss, losses[0])

    def test_hooks_inside_layers_and_on_parameters(self):
        model = model_of("llama")
        model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: output * 1.25)
        calls = []
        weight = model.model.layers[0].self_attn.q_proj.weight
        weight.register_hook(lambda gradient: calls.append(1) or gradient * 0.5)
        self.compare(model, batch_of(61, (23, 15)), "hooks", chunks=(6,))
        calls.clear()
        with everything_in_float64(), streamed(model, 6):
            step(model, batch_of(61, (23, 15)))
        self.assertEqual(len(calls), 1)

    def test_a_layer_whose_rows_meet_outside_its_cache_runs_whole(self):
        model = model_of("llama")
        model.model.layers[2].__class__ = PlantedLayer
        batch = batch_of(61, (23, 15))
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False)
            table = sb.prove(model)
            self.assertEqual({proof.layers: proof.lane for proof in table}, {(0, 1, 3): "module", (2,): "whole"})
            with self.assertLogs("streambp_bench") as caught:
                sb.patch(model, lane="module", chunk=7)
            said = [each for each in caught.output if "PlantedLayer" in each]
            self.assertEqual(len(said), 1)
            self.assertIn("whole: in chunks", said[0])
            ours_loss, ours = step(model, batch)
            self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT)
            sb.patch(model, lane="module", chunk=7, prove=False)  # and without the proof the mistake is there
            _, ours = step(model, batch)
            self.assertGreater(difference(ours, theirs), 1e-3)
            sb.unpatch(model)

    def test_a_mistake_is_found_in_every_dtype(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for family in ("llama", "gemma2", "qwen3_next", "gpt2"):
                model = model_of(family).to(dtype)
                table = sb.prove(model)
                self.assertEqual({proof.lane for proof in table}, {"module"}, f"{family}, {dtype}\n{table}")
            model = model_of("llama").to(dtype)
            model.model.layers[2].__class__ = PlantedLayer
            self.assertEqual({proof.layers: proof.lane for proof in sb.prove(model)}, {(0, 1, 3): "module", (2,): "whole"})

    def test_a_layer_that_sees_later_rows_runs_whole(self):
        model = model_of("llama")
        own = model.model.layers[0].forward
        model.model.layers[0].forward = lambda hidden_states, **more: own(hidden_states, **more) + hidden_states.mean(1, keepdim=True)
        with everything_in_float64():
            table = sb.prove(model)
        self.assertEqual(sorted(proof.lane for proof in table), ["module", "whole"])

    def test_routers_losses(self):
        model = model_of("mixtral", output_router_logits=True, router_aux_loss_coef=0.5)
        self.compare(model, batch_of(61, (23, 15)), "router losses", chunks=(7,))

    def test_attentions_that_are_asked_for(self):
        for family in ("llama", "bloom"):
            model, batch = model_of(family), batch_of(61, (23, 15))
            with everything_in_float64():
                theirs = model(**batch, use_cache=False, output_attentions=True)
                with streamed(model), self.assertLogs("streambp_bench") as caught:
                    ours = [model(**batch, output_attentions=True) for _ in range(2)][-1]
                self.assertEqual([line for line in caught.output if "attention weights" in line], caught.output)  # once for all layers of a class
                self.assertEqual(len(caught.output), 1)
                self.assertEqual([tuple(each.shape) for each in ours.attentions], [tuple(each.shape) for each in theirs.attentions])
                self.assertTrue(all(torch.allclose(*pair, atol=1e-12) for pair in zip(ours.attentions, theirs.attentions, strict=True)))

    def test_checkpointing_that_a_trainer_turns_on(self):
        model = model_of("llama")
        batch = batch_of(61, (23, 15))
        with everything_in_float64():
            _, theirs = step(model, batch, use_cache=False)
            with streamed(model):
                model.gradient_checkpointing_enable({"use_reentrant": False})
                _, ours = step(model, batch)
                self.assertFalse(model.model.layers[0].gradient_checkpointing)
            self.assertTrue(model.model.layers[0].gradient_checkpointing)
        self.assertTrue(difference(ours, theirs) <= LIMIT)

    def test_frozen_embeddings_and_layers(self):
        model = model_of("llama")
        model.model.embed_tokens.requires_grad_(False)
        model.model.layers[0].requires_grad_(False)
        model.model.layers[1].mlp.requires_grad_(False)
        self.compare(model, batch_of(61, (23, 15)), "frozen", chunks=(7,))

    def test_a_layer_keeps_its_input_alone(self):
        model = model_of("qwen3").double()
        for tokens in (23, 46):
            kept = []

            def pack(tensor, kept=kept):
                kept.append(tensor)
                return tensor

            with everything_in_float64(), streamed(model):
                layer, own = model.model.layers[1], model.model.layers[1].forward

                def watched(*args, own=own, pack=pack, **kwargs):
                    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                        return own(*args, **kwargs)

                layer.forward = watched
                step(model, batch_of(61, (tokens, tokens)))
                layer.forward = own
            self.assertEqual([tuple(each.shape) for each in kept], [(2, tokens, model.config.hidden_size)])

    def test_evaluation_generation_and_caches_are_the_models_own(self):
        model, batch = model_of("llama"), batch_of(61, (23, 15), "left")
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        model.eval()
        with in_float64():
            logits = model(**given).logits
            tokens = model.generate(**given, max_new_tokens=4, do_sample=False)
            with streamed(model):
                self.assertTrue(torch.equal(model(**given).logits, logits))
                self.assertTrue(torch.equal(model.generate(**given, max_new_tokens=4, do_sample=False), tokens))
                model.train()
                filled = model(**given, use_cache=True).past_key_values
                self.assertEqual(filled.get_seq_length(), 23)

    def test_without_gradients_as_with_them(self):
        model, batch = model_of("llama").bfloat16(), batch_of(61, (23, 15), "left")
        with streamed(model):
            model.train()
            outputs = model.model(**{name: batch[name] for name in ("input_ids", "attention_mask")}, use_cache=False)
            with torch.no_grad():
                again = model.model(**{name: batch[name] for name in ("input_ids", "attention_mask")}, use_cache=False)
        self.assertTrue(torch.equal(outputs.last_hidden_state, again.last_hidden_state))

    def test_unpatch_and_copies(self):
        model, batch = model_of("llama"), batch_of(61, (23, 15))
        with everything_in_float64():
            loss, theirs = step(model, batch)
            before = [set(vars(module)) for module in model.modules()]
            sb.patch(model, lane="module", chunk=7)
            other = copy.deepcopy(model)
            sb.unpatch(model)
            self.assertEqual([set(vars(module)) for module in model.modules()], before)
            again, ours = step(model, batch)
            self.assertEqual(loss, again)
            self.assertTrue(all(torch.equal(ours[name], theirs[name]) for name in theirs))
            with torch.no_grad():
                other.model.layers[0].mlp.up_proj.weight.mul_(2)
                model.model.layers[0].mlp.up_proj.weight.mul_(2)
            self.assertTrue(difference(step(other, batch)[1], step(model, batch)[1]) <= LIMIT)

    def test_from_one_lane_to_the_other(self):
        model, batch = tiny(dtype=torch.float64), batch_of(61, (23, 15))
        with everything_in_float64():
            _, theirs = step(model, batch)
            sb.patch(model, lane="module", chunk=7)
            self.assertTrue(difference(step(model, batch)[1], theirs) <= LIMIT)
            sb.patch(model, chunk=7, lane="engine")
            self.assertEqual(lanes(model), {"module"})
            self.assertTrue(difference(step(model, batch)[1], theirs) <= LIMIT)
            sb.patch(model, lane="module", chunk=7)
            sb.unpatch(model)
        self.assertNotIn("forward", vars(model.model.layers[0]))

    def test_refusals(self):
        model = model_of("phi")
        self.assert_refused(lambda: sb.patch(model, lane="engine"), "not one of the classes that are known")
        self.assert_refused(lambda: sb.patch(model, lane="lane"), "engine", "module")
        self.assert_refused(lambda: sb.patch(model, lane="module", first_labels="ignore"), "first_labels")
        self.assert_refused(lambda: sb.patch(model, lane="module", chunk=0), "chunk")
        self.assert_refused(lambda: sb.patch(torch.nn.Linear(2, 2), lane="module"), "Linear")

    def test_a_loss_of_padding_that_sees_later_rows_is_refused(self):
        model, batch = model_of("llama"), batch_of(61, (23, 15), "left")
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)  # the first real token is predicted by padding
        with everything_in_float64(), streamed(model):
            self.assert_refused(lambda: step(model, batch), "padding", "-100")


if __name__ == "__main__":
    unittest.main()
