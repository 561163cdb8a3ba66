// Models over tensors that somebody else owns. See model.h.
#include <algorithm>
#include <utility>

#include "streambp/error.h"
#include "streambp/model/config/parameter_names.h"
#include "streambp/model/model.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

Model Model::skeleton(const Config& config, at::ScalarType dtype, c10::Device device,
                      std::optional<at::ScalarType> head_dtype) {
  Placement shapes_alone{dtype, c10::DeviceType::Meta, dtype, [](const std::string&) { return false; }};
  shapes_alone.head_dtype = head_dtype;
  Model model(config, shapes_alone, [](Parameter&, ParameterRole) {});
  model.is_skeleton_ = true;
  model.lender_ = device;
  return model;
}

void Model::give_back() {
  TORCH_CHECK(is_skeleton_, "only a skeleton was lent tensors");
  for (const auto& parameter : parameters_) {
    if (parameter->value.defined())
      skeleton_shapes_.try_emplace(parameter->name, parameter->value.sizes().vec());
    parameter->value.reset();
    parameter->gradient.reset();
    renew_parts(*parameter);
  }
  placement_.device = lender_;
  for (const auto& [size, ones] : ones_) {
    if (ones->value.device() != lender_)
      ones->value = at::ones({size}, ones->value.options().device(lender_));
  }
}

void Model::lend(const std::map<std::string, at::Tensor>& values,
                 const std::map<std::string, at::Tensor>& gradients) {
  TORCH_CHECK(is_skeleton_, "only a skeleton is lent tensors");
  if (!trained_rows_.empty())
    throw InputError(
        "trainable_token_indices: rows are written into the base's embedding, which is not ours to "
        "write; expected an adapter without them");
  give_back();
  const auto check = [&](const std::string& name, const at::Tensor& tensor, const char* what) {
    const std::vector<int64_t>& shape = skeleton_shapes_.at(name);
    const at::ScalarType dtype = dtype_of(name);
    const bool is_so =
        tensor.scalar_type() == dtype || (may_be_wide(name) && tensor.scalar_type() == sum_dtype(dtype));
    if (tensor.sizes() == at::IntArrayRef(shape) && is_so && tensor.device() == lender_ &&
        tensor.is_contiguous())
      return;
    throw InputError("{}: {} is {} [{}] on {}{}, expected {} [{}] on {}", name, what,
                     c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                     tensor.device().str(), tensor.is_contiguous() ? "" : ", not contiguous",
                     c10::toString(dtype), fmt::join(shape, ", "), lender_.str());
  };
  for (const auto& [name, value] : values) {
    Parameter& own = parameter(name);
    check(name, value, "the parameter");
    own.value = value.detach();
  }
  for (const auto& [name, gradient] : gradients) {
    Parameter& own = parameter(name);
    if (!own.value.defined()) throw InputError("{}: a gradient, and no value, was given", name);
    check(name, gradient, "its gradient");
    own.gradient = gradient;
  }
  for (const auto& [whole, parts] : parts_) renew_parts(*whole);
}

}  // namespace streambp
