// The parts of model_layers.cc of several residual streams, and of the n-grams that are added to them.
#include <vector>

#include "streambp/model/model.h"

namespace streambp {

StreamGates Model::stream_gates(const std::string& names, int64_t which, double magnitude, double eps) {
  const int64_t streams = config_.hyper.streams;
  return {add_rows(parameter(names + "fn"), which * streams, streams),
          add_rows(parameter(names + "base"), which * streams, streams),
          add_rows(parameter(names + "scale"), which, 1),
          magnitude,
          eps,
          config_.rms_norm_eps};
}

StreamGates Model::gates_of_given(const std::string& names) {
  const HyperSettings& hyper = config_.hyper;
  const bool mixes = hyper.sinkhorn_iters > 0;
  StreamGates gates = stream_gates(names, 1, hyper.magnitude, mixes ? 0.0 : hyper.eps);
  if (!mixes) return gates;
  const int64_t first = 2 * hyper.streams, count = hyper.streams * hyper.streams;
  gates.mix = {add_rows(parameter(names + "fn"), first, count),
               add_rows(parameter(names + "base"), first, count), add_rows(parameter(names + "scale"), 2, 1),
               hyper.eps, hyper.sinkhorn_iters};
  return gates;
}

NgramInput Model::make_ngrams(const std::string& name, int64_t index) {
  const NgramSettings& settings = config_.ngrams;
  const int64_t module = settings.modules[static_cast<size_t>(index)];
  NgramInput input;
  input.table = &parameter(name + ".ple_embedding.ngram_embedding.weight");
  input.multipliers = ngram_multipliers(settings, module, config_.vocab_size);
  input.rows = ngram_head_rows(settings, module);
  input.key_proj = add_map(name + ".key_proj", /*bias=*/false);
  input.value_proj = add_map(name + ".value_proj", /*bias=*/false);
  input.norm_key = norm_of(name + ".norm_key");
  input.norm_query = norm_of(name + ".norm_query");
  input.norm_conv = norm_of(name + ".norm_conv");
  input.conv1d = &parameter(name + ".conv1d.weight");
  input.streams = config_.hyper.streams;
  return input;
}

StreamMixer Model::stream_mixer(const std::string& names, bool gives) {
  const int64_t streams = config_.hyper.streams;
  const auto shared_map = [&](const char* part) {
    Linear* const map = add_map(names + part, /*bias=*/false);
    map->output_scale = 1.0 / static_cast<double>(streams);
    return map;
  };
  return {norm_of(names + ".hc_norm"), shared_map(".input_mix_weight_down"),
          add_map(names + ".input_mix_weight_up", /*bias=*/false),
          gives ? shared_map(".block_inject_weight") : nullptr, streams};
}

}  // namespace streambp
