// Precompiled: what the tests read of other libraries.
#pragma once

#include <gtest/gtest.h>

#include "streambp/cli/program_headers.h"
