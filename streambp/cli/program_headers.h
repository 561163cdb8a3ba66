// Precompiled: what the files of the programs read of other libraries.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>

#include "streambp/torch_headers.h"
