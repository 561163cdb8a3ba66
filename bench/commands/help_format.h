// --help of streambp-bench: flags by what they are about, text as wide as the terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace streambp::bench {

/// `text` with lines of at most `width` characters where spaces permit; what continues a line begins under
/// its text, `indent` characters further in. Commands ("  streambp-bench ...") stay on one line, to be
/// copied.
std::string wrapped(const std::string& text, size_t width, size_t indent);

/// Puts every command's flags into groups (model, adapters, data, objective, method, memory, run, output) and
/// wraps --help to the terminal on stdout; into a file or pipe lines stay whole. To be called when all
/// commands are there.
void format_help(CLI::App& app);

/// Whether the command line asks for --help objectives or --help methods (`topic`), which no command's --help
/// prints: each is a page of its own.
bool asks_for(std::string_view topic, int argc, const char* const* argv);

/// `text` as --help would print it.
std::string help_text(const std::string& text);

}  // namespace streambp::bench
