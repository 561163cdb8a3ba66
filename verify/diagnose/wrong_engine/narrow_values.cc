#include "verify/diagnose/wrong_engine/narrow_values.h"

#include <vector>

#include "streambp/error.h"
#include "streambp/model/config/rope_frequencies.h"
#include "streambp/ops/rope.h"

namespace streambp::verify {
namespace {

at::Tensor narrow(const at::Tensor& values) {
  return values.to(at::kBFloat16).to(values.scalar_type());
}

/// The table of such frequencies, times what each row of `table` is multiplied by.
RopeTable by_narrow_frequencies(const RopeTable& table, const RopeSettings& rope, int64_t rotary_dim,
                                const Batch& batch) {
  const std::vector<double> frequencies = rope_inverse_frequencies(rope, rotary_dim, rope_length(batch));
  const at::Tensor length = (table.cosine.square() + table.sine.square()).sqrt();
  RopeTable made =
      rope_table(batch.positions, narrow(at::tensor(at::ArrayRef<double>(frequencies), at::kDouble)), 1.0,
                 table.cosine.scalar_type());
  return {made.cosine * length, made.sine * length};
}

}  // namespace

at::Tensor narrowed(const at::Tensor& x) {
  return x + (narrow(x) - x).detach();
}

at::Tensor in_float8(const at::Tensor& x, const at::Tensor& scale) {
  return (x / scale).to(at::kFloat8_e4m3fn).to(x.scalar_type()) * scale;
}

at::Tensor narrow_input(const at::Tensor& x, const std::string& name, const NarrowInputs& inputs) {
  const size_t at = name.rfind(".layers.");
  if (inputs.endings.empty() || at == std::string::npos) return x;
  const size_t kind = name.find('.', at + std::string(".layers.").size()) + 1;
  if (inputs.endings.find(name.substr(kind) + " ") == std::string::npos) return x;
  const at::Tensor scale = inputs.by_token ? x.detach().abs().amax(-1, true).clamp_min(1e-12) / kLargestFloat8
                                           : at::ones({1}, x.options());
  return x + (in_float8(x.detach(), scale) - x).detach();
}

void narrow_rotation(const Config& config, NarrowRotation rotation, Stream& stream) {
  if (rotation == NarrowRotation::kNone) return;
  if (stream.rope.angles.defined()) throw InputError("--diagnose: frequencies that are trained");
  const auto change = [&](RopeTable& table, const RopeSettings& rope, int64_t rotary_dim) {
    if (!table.cosine.defined()) return;
    table = rotation == NarrowRotation::kTables
                ? RopeTable{narrow(table.cosine), narrow(table.sine)}
                : by_narrow_frequencies(table, rope, rotary_dim, stream.batch);
  };
  change(stream.rope, config.rope, config.rotary_dim);
  change(stream.query_rope, config.rope, config.rotary_dim);
  if (config.local_rope) change(stream.local_rope, *config.local_rope, config.local_rotary_dim());
}

}  // namespace streambp::verify
