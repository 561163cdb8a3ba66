// The parts of a layer, and what it means that the gradients of some are wrong while others are right.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "streambp/model/config/config.h"

namespace streambp::verify {

/// What part of a layer a parameter belongs to, in the order in which gradients reach them.
enum class Role {
  kAfterMlp,
  kExperts,
  kMlp,
  kRouter,
  kBeforeMlp,
  kAfterAttention,
  kOutput,
  kValues,
  kKeys,
  kQueries,
  kProjected,  // queries, keys and values in one
  kSinks,
  kRecurrence,
  kBeforeAttention,
  kOther,
};

/// Of a parameter by its name without model.layers.N.
Role role_of(const std::string& in_layer, const NormNames& norms);

/// How many parameters of each part are wrong, and how many there are.
using RoleCounts = std::map<Role, std::pair<size_t, size_t>>;

/// A name and a sentence for what is wrong in a layer below which all is wrong, and above which all is right.
std::pair<std::string, std::string> words_for_roles(const Config& config, int64_t layer,
                                                    const RoleCounts& roles);

/// What may be the matter with parts that are wrong by themselves.
std::string own_words(const std::set<Role>& roles);

}  // namespace streambp::verify
