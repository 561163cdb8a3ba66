#include "verify/diagnose/wrong_engine/other_weights.h"

#include <algorithm>
#include <cctype>

#include "streambp/error.h"
#include "verify/diagnose/wrong_engine/narrow_values.h"

namespace streambp::verify {
namespace {

constexpr double kLargestInt8 = 127.0;

/// `x` [heads rows, ...] with `change` made of each head [heads, rows, ...].
template <typename Change>
at::Tensor by_heads(const at::Tensor& x, int64_t rows, Change change) {
  if (rows <= 0 || x.size(0) % rows != 0) throw InputError("--diagnose: rows that are no heads'");
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = rows;
  shape.insert(shape.begin(), x.size(0) / rows);
  return change(x.reshape(shape)).reshape(x.sizes()).contiguous();
}

/// Columns of heads [out, heads E] as where `ranks` hand them on in turn: each rank's first head, then each
/// one's second; back: the inverse.
at::Tensor heads_in_turn(const at::Tensor& x, const WeightChange& change, bool back) {
  const int64_t ranks = change.by, each = change.rows / ranks;
  const at::Tensor by_rank = x.reshape({x.size(0), back ? ranks : each, back ? each : ranks, -1});
  return by_rank.transpose(1, 2).reshape(x.sizes()).contiguous();
}

at::Tensor without_tail(const at::Tensor& x, const WeightChange& change) {
  return by_heads(x, change.rows, [&](at::Tensor heads) {
    heads = heads.clone();
    heads.narrow(1, change.rows - change.by, change.by).zero_();
    return heads;
  });
}

bool is_rounded(WeightChange::How how) {
  using How = WeightChange::How;
  return how == How::kInt8Rows || how == How::kInt8 || how == How::kFloat8Rows || how == How::kFloat8;
}

at::Tensor rounded(const at::Tensor& x, WeightChange::How how) {
  using How = WeightChange::How;
  const bool by_rows = how == How::kInt8Rows || how == How::kFloat8Rows;
  const at::Tensor largest = (by_rows ? x.abs().amax(-1, true) : x.abs().amax()).clamp_min(1e-300);
  if (how == How::kInt8Rows || how == How::kInt8) {
    const at::Tensor scale = largest / kLargestInt8;
    return (x / scale).round() * scale;
  }
  return in_float8(x, largest / kLargestFloat8);
}

bool is_meant(const WeightChange& change, const std::string& name, const at::Tensor& x) {
  return change.kind == kAllMatrices ? x.dim() >= 2 && name.find(".layers.") != std::string::npos
                                     : change.kind == kind_of(name);
}

at::Tensor changed(const at::Tensor& x, const WeightChange& change) {
  switch (change.how) {
    case WeightChange::How::kZero:
    case WeightChange::How::kAbsent:
      return at::zeros_like(x);
    case WeightChange::How::kReversed:
      return x.flip({-1}).contiguous();
    case WeightChange::How::kTimes:
      return x * change.factor;
    case WeightChange::How::kRolled:
      return by_heads(x, change.rows, [&](const at::Tensor& heads) { return heads.roll(change.by, 1); });
    case WeightChange::How::kTransposed:
    case WeightChange::How::kTransposedValues:
      return x.t().contiguous();
    case WeightChange::How::kHeadsInTurn:
      return heads_in_turn(x, change, false);
    case WeightChange::How::kAbsentTail:
      return without_tail(x, change);
    default:
      return rounded(x, change.how);
  }
  return x;
}

/// The transposed of the same.
at::Tensor back(const at::Tensor& x, const WeightChange& change) {
  if (change.how == WeightChange::How::kZero || change.how == WeightChange::How::kTransposedValues ||
      is_rounded(change.how))
    return x;  // those of the values that are there instead
  if (change.how == WeightChange::How::kHeadsInTurn) return heads_in_turn(x, change, true);
  WeightChange inverse = change;
  if (change.how == WeightChange::How::kRolled) inverse.by = -change.by;
  return changed(x, inverse);
}

}  // namespace

std::string kind_of(const std::string& name) {
  std::string kind;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!kind.empty()) kind += '.';
    kind += number ? "*" : part;
    begin = end + 1;
  }
  static const std::string kLayers = "model.layers.*.";
  return kind.starts_with(kLayers) ? kind.substr(kLayers.size()) : kind;
}

bool changes_weights(const WrongSettings& settings) {
  return !settings.weights.empty() || settings.step.along != nullptr;
}

at::Tensor changed_value(const Parameter& parameter, const WrongSettings& settings) {
  at::Tensor value = parameter.value;
  for (const WeightChange& change : settings.weights) {
    if (is_meant(change, parameter.name, value)) value = changed(value, change);
  }
  if (settings.step.along == nullptr) return value;
  const auto found = settings.step.along->find(parameter.name);
  return found == settings.step.along->end() ? value : value + found->second.to(value) * settings.step.size;
}

at::Tensor unchanged_gradient(const std::string& name, const at::Tensor& gradient,
                              const WrongSettings& settings) {
  at::Tensor own = gradient;
  for (auto change = settings.weights.rbegin(); change != settings.weights.rend(); ++change) {
    if (is_meant(*change, name, own)) own = back(own, *change);
  }
  return own;
}

}  // namespace streambp::verify
