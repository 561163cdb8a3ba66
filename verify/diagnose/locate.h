// From the top down: gradients flow from the head to the embedding, so that where those above are right, the
// first that is wrong tells which operation lies between.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "streambp/model/config/config.h"
#include "verify/diagnose/layer_roles.h"
#include "verify/diagnose/parts/parts.h"

namespace streambp::verify {

/// How far the gradient of a parameter may be from the truth: relative to it, or absolute where it is zero.
using GradientLimits = std::map<std::string, double>;

struct Location {
  enum class Kind {
    kEverywhere,  // loss or forward pass: head and nearly all below are wrong
    kBetween,     // something between what is right above and what is wrong from there on
    kAlone,       // parameters of their own, with what lies below them right
  };
  Kind kind = Kind::kEverywhere;
  std::string name;
  std::string sentence;
  std::string right, wrong;             // what is, in a line each
  std::string alone;                    // the parameters that are wrong alone, in words
  std::vector<std::string> parameters;  // that are wrong alone
  std::set<Role> roles;  // of the highest layer, whose parameters are wrong, where something below follows
  std::set<Role> roles_there;    // all that it has
  std::optional<double> factor;  // of the same, where all are one multiple of what they should be
  /// Whether something of a layer that has a gradient is right, so that the loss and the forward pass are.
  bool forward_is_right = false;
  /// Whether something below what is wrong is right, so that what flows through layers is.
  bool flow_is_right = false;
  /// Of parameters alone, that are the truth times a number each: these numbers. Empty: some are not.
  std::map<std::string, double> factors;
};

/// Where `gradients` (under the truth's names; missing ones are zero) go wrong, up to a factor that most have
/// in common; nothing where none is beyond its limit.
std::optional<Location> locate(const Config& config, const Tensors& gradients, const Tensors& truth,
                               const GradientLimits& limits);

}  // namespace streambp::verify
