// The ways of running one back-propagation that differ in time and memory and in nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/sweep_options.h"
#include "streambp/backprop/method.h"

namespace streambp::bench {

/// The methods of `options`: all of them where `auto` is among them, those that are named elsewhere. A fused
/// optimizer leaves streambp alone.
std::vector<Method> candidate_methods(const SweepOptions& options);

/// Every way of running a stream of `tokens` tokens on `device` through `layers` layers by one of the
/// candidate methods: chunks, whether the head is streamed, what streambp keeps of its layers and, with
/// `may_offload`, where. What the command line says of these (SweepOptions::fixed, chunks, stream_head) stays
/// as it is. No two are the same.
std::vector<Settings> list_ways(const SweepOptions& options, c10::Device device, int64_t layers,
                                int64_t tokens, bool may_offload);

/// "streambp, chunk 1024, keep-attention, every 4, offload host"; "standard, streamed head".
std::string describe_way(const Settings& settings);

}  // namespace streambp::bench
