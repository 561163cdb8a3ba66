// Flags from and into TOML files: --config and --write-config of streambp-bench.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace streambp::bench {

/// Adds both flags to the program: they may stand before or after a command's name. A file has a section for
/// each command, "[sweep]", with its flags without their dashes; a list may be one text ("512,1024") or an
/// array; what is typed wins over the file. A name that is no flag's is refused with file and section.
/// `write_config` is the file to write, empty for none. To be called before commands are added.
void add_config_flags(CLI::App& app, std::string& write_config);

/// The flags that were given, typed or from a file, but for --config itself.
std::string config_text(const CLI::App& app);

}  // namespace streambp::bench
