// Precompiled: what the files of the programs read of other libraries. CLI11 is left to the few that use it:
// its global validators would be compiled again in every file, 3 s each.
#pragma once

#include <nlohmann/json.hpp>

#include "streambp/torch_headers.h"
