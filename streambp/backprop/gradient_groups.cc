#include "streambp/backprop/gradient_groups.h"

#include <algorithm>

namespace streambp {

std::vector<Parameter*> head_group(const Model& model) {
  std::vector<Parameter*> group = model.head_parameters();
  for (Parameter* embedding : model.embedding_parameters()) std::erase(group, embedding);
  return group;
}

std::vector<std::vector<Parameter*>> gradient_groups(const Model& model) {
  std::vector<std::vector<Parameter*>> groups{head_group(model)};
  const int64_t lowest = model.lowest_trainable_layer();
  for (auto layer = static_cast<int64_t>(model.layers().size()) - 1; layer >= std::max<int64_t>(lowest, 0);
       --layer)
    groups.push_back(model.layer_parameters(layer));
  groups.push_back(model.embedding_parameters());
  std::erase_if(groups, [](const std::vector<Parameter*>& group) { return group.empty(); });
  return groups;
}

void hand_over(Model& model, GradientConsumer& consumer, const std::vector<Parameter*>& group) {
  if (group.empty()) return;
  if (!consumer.frees()) return consumer.use(group);
  for (Parameter* parameter : group) parameter->deferred = true;  // stays trainable without it
  consumer.use(group);
  model.defer_gradients(group);
}

void hand_over_all(Model& model, GradientConsumer& consumer) {
  for (const std::vector<Parameter*>& group : gradient_groups(model)) {
    hand_over(model, consumer, group);
  }
}

}  // namespace streambp
