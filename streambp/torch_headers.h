// Precompiled: what every file of the library reads of torch.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
