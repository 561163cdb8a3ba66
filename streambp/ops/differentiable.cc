#include "streambp/ops/differentiable.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "streambp/memory/remembered_scope.h"

namespace streambp {
namespace {

class ClosureNode final : public torch::autograd::Node {
 public:
  ClosureNode(const char* name, Backward backward, torch::autograd::edge_list&& next_edges)
      : Node(std::move(next_edges)), name_(name), backward_(std::move(backward)) {}

  std::string name() const override { return name_; }
  void release_variables() override { backward_ = nullptr; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TORCH_CHECK(backward_, name_, ": a second backward pass through the same graph");
    // Taken out first, so that what the closure captured is freed with it and not when the graph is.
    const Backward backward = std::exchange(backward_, nullptr);
    const at::NoGradGuard no_grad;
    const RememberedScope::Reopened scope(scope_);
    return backward(std::move(gradients));
  }

  const char* name_;
  Backward backward_;
  RememberedScope scope_;
};

}  // namespace

bool needs_backward(const std::vector<at::Tensor>& inputs) {
  return at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
           return input.requires_grad();
         });
}

std::vector<at::Tensor> differentiable(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                                       const char* name, Backward backward) {
  if (!needs_backward(inputs)) return outputs;
  auto node =
      std::make_shared<ClosureNode>(name, std::move(backward), torch::autograd::collect_next_edges(inputs));
  for (at::Tensor& output : outputs) {
    // A new tensor over the same storage: the closure may hold the old one without holding the graph, itself
    // included.
    output = output.detach();
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

at::Tensor differentiable(const std::vector<at::Tensor>& inputs, at::Tensor output, const char* name,
                          Backward backward) {
  return differentiable(inputs, std::vector<at::Tensor>{std::move(output)}, name, std::move(backward))
      .front();
}

at::Tensor unread(const at::Tensor& like) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(), like.options()).expand(like.sizes());
}

}  // namespace streambp
