// One step of streamed back-propagation: a model, a batch, an objective, gradients.
//   one_step [MODEL]   a Hugging Face folder, or a preset with random weights (default: qwen3-tiny)
#include <cstdio>

#include "streambp/backprop/method.h"
#include "streambp/error.h"
#include "streambp/model/open_model.h"

int main(int argc, char** argv) try {
  using namespace streambp;
  Model model = open_model(argc > 1 ? argv[1] : "qwen3-tiny", /*placement=*/{}, /*seed=*/0);

  // Two rows of tokens, the second one padded on its right; pack() drops the padding.
  const at::Tensor input_ids = at::tensor({5, 17, 3, 9, 2, 11, 8, 0}, at::kLong).view({2, 4});
  const at::Tensor attention_mask = at::tensor({1, 1, 1, 1, 1, 1, 1, 0}, at::kLong).view({2, 4});
  const Batch batch =
      pack(input_ids, attention_mask, /*labels=*/{}, /*position_ids=*/{}, model.config().vocab_size);

  const auto objective = make_objective("sft", batch);  // mean cross-entropy of the next token
  Settings settings;                                    // method streambp
  settings.chunk = 3;                                   // tokens
  // Gradients are added to those that are there: model.zero_gradients() comes before the next step's pass.
  const Outcome outcome = backpropagate(model, batch, *objective, settings);

  std::printf("loss %.6f\n", outcome.loss);
  for (const auto& [name, gradient] : model.gradients())
    std::printf("%-48s norm %.6f\n", name.c_str(), gradient.norm().item<double>());
  return 0;
} catch (const streambp::InputError& error) {
  std::fprintf(stderr, "one_step: %s\n", error.what());
  return 2;
}
