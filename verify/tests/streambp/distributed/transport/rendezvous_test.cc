// What launchers of processes say in the environment.
#include "streambp/distributed/transport/rendezvous.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <map>

#include "streambp/error.h"

namespace streambp {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Rendezvous> with(const Variables& variables) {
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  struct Cleared {
    const Variables& variables;
    ~Cleared() {
      for (const auto& [name, value] : variables) unsetenv(name.c_str());
    }
  } const cleared{variables};
  return rendezvous_of_environment();
}

Variables torchrun(const std::string& size, const std::string& port) {
  return {{"RANK", "1"}, {"MASTER_ADDR", "10.0.0.1"}, {"WORLD_SIZE", size}, {"MASTER_PORT", port}};
}

TEST(Rendezvous, ReadsTorchrunsVariables) {
  EXPECT_FALSE(rendezvous_of_environment());
  const std::optional<Rendezvous> found = with(torchrun("4", "29500"));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->size, 4);
  EXPECT_EQ(found->host, "10.0.0.1");
  EXPECT_EQ(found->port, 29500);
  EXPECT_FALSE(found->serves);
  EXPECT_THROW(with(torchrun("1", "29500")), InputError);
  EXPECT_THROW(with(torchrun("4", "port")), InputError);
  EXPECT_THROW(with(torchrun("", "29500")), InputError);
  EXPECT_THROW(with({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), InputError);
}

TEST(Rendezvous, LetsTorchrunsAgentServeTheStore) {
  Variables first = torchrun("4", "29500");
  first["RANK"] = "0";
  EXPECT_TRUE(with(first)->serves);
  first["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  first["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_FALSE(with(first)->serves);
  EXPECT_EQ(with(first)->run, "3");
}

TEST(Rendezvous, ServesTheStoreAtAnAddressOfChoice) {
  Variables variables = torchrun("4", "29500");
  EXPECT_EQ(with(variables)->listens, "");
  variables["STREAMBP_STORE_ADDRESS"] = "0.0.0.0";
  EXPECT_EQ(with(variables)->listens, "0.0.0.0");
}

TEST(Rendezvous, ReadsMpirunsVariables) {
  for (const auto& [rank, size] : std::map<std::string, std::string>{
           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}}) {
    const std::optional<Rendezvous> first = with({{rank, "0"}, {size, "3"}});
    ASSERT_TRUE(first);
    EXPECT_TRUE(first->serves);
    EXPECT_EQ(first->host, "127.0.0.1");
    EXPECT_EQ(first->port, 29500);
    const std::optional<Rendezvous> last =
        with({{rank, "2"}, {size, "3"}, {"MASTER_ADDR", "node-7"}, {"MASTER_PORT", "4000"}});
    ASSERT_TRUE(last);
    EXPECT_EQ(last->rank, 2);
    EXPECT_EQ(last->host, "node-7");
    EXPECT_EQ(last->port, 4000);
    EXPECT_FALSE(last->serves);
    EXPECT_THROW(with({{rank, "3"}, {size, "3"}}), InputError);
    EXPECT_THROW(with({{rank, "0"}}), InputError);
  }
}

}  // namespace
}  // namespace streambp
