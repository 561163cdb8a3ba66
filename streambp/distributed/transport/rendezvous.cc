#include "streambp/distributed/transport/rendezvous.h"

#include <charconv>
#include <cstdlib>

#include "streambp/error.h"

namespace streambp {
namespace {

/// How one kind of launcher names a process's rank and their number.
struct Launcher {
  const char* rank;
  const char* size;
  bool names_address;  // it sets MASTER_ADDR and MASTER_PORT too
};
constexpr Launcher kLaunchers[] = {{"RANK", "WORLD_SIZE", true},
                                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false},
                                   {"PMI_RANK", "PMI_SIZE", false}};

bool is_set(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

std::string variable(const Launcher& launcher, const char* name) {
  if (!is_set(name)) throw InputError("the environment has {} but no {}, expected both", launcher.rank, name);
  return std::getenv(name);
}

int64_t number(const Launcher& launcher, const char* name, int64_t least, int64_t most) {
  const std::string text = variable(launcher, name);
  int64_t value = 0;
  const auto [stopped, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || stopped != text.data() + text.size() || value < least || value > most)
    throw InputError("the environment's {} is '{}', expected a number from {} to {}", name, text, least,
                     most);
  return value;
}

}  // namespace

std::optional<Rendezvous> rendezvous_of_environment() {
  for (const Launcher& launcher : kLaunchers) {
    if (!is_set(launcher.rank)) continue;
    Rendezvous found;
    found.size = number(launcher, launcher.size, 1, kMostRanks);
    found.rank = number(launcher, launcher.rank, 0, found.size - 1);
    found.port = 29500;
    if (launcher.names_address || is_set("MASTER_ADDR")) found.host = variable(launcher, "MASTER_ADDR");
    if (launcher.names_address || is_set("MASTER_PORT"))
      found.port = number(launcher, "MASTER_PORT", 1, 65535);
    const bool agent_serves = launcher.names_address && is_set("TORCHELASTIC_USE_AGENT_STORE") &&
                              std::string(std::getenv("TORCHELASTIC_USE_AGENT_STORE")) == "True";
    found.serves = found.rank == 0 && !agent_serves;
    if (is_set("STREAMBP_STORE_ADDRESS")) found.listens = std::getenv("STREAMBP_STORE_ADDRESS");
    if (is_set("TORCHELASTIC_RESTART_COUNT")) found.run = std::getenv("TORCHELASTIC_RESTART_COUNT");
    return found;
  }
  return std::nullopt;
}

}  // namespace streambp
