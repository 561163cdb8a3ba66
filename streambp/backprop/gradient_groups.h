// Which gradients of a pass are final together, and in which order.
#pragma once

#include <vector>

#include "streambp/model/model.h"
#include "streambp/optimizer/gradient_consumer.h"

namespace streambp {

/// The trainable parameters of the final norm and the heads, without those that the embedding shares: theirs
/// are final when the embedding's are.
std::vector<Parameter*> head_group(const Model& model);

/// All trainable parameters by when their gradients are final in a backward pass, each in one group: the
/// head's, each layer's from the last to the lowest trained one, the embedding's with those of per-layer
/// inputs. Without empty groups.
std::vector<std::vector<Parameter*>> gradient_groups(const Model& model);

/// Hands a group to `consumer`, and frees what it has left of the gradients, if it frees them.
void hand_over(Model& model, GradientConsumer& consumer, const std::vector<Parameter*>& group);

/// Hands over all groups at once, for methods that know no consumer.
void hand_over_all(Model& model, GradientConsumer& consumer);

}  // namespace streambp
