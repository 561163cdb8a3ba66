// A folder that one run at a time writes to.
#include "streambp/runtime/held_folder.h"

#include <fstream>
#include <gtest/gtest.h>
#include <optional>
#include <unistd.h>

#include "streambp/error.h"

namespace streambp {
namespace {

namespace fs = std::filesystem;

/// A name in a folder that goes away.
struct Scratch {
  fs::path folder = fs::temp_directory_path() / fmt::format("held-folder-{}", ::getpid());
  Scratch() { fs::create_directories(folder); }
  ~Scratch() { fs::remove_all(folder); }
};

TEST(HeldFolder, IsHeldAgainstOthers) {
  const Scratch scratch;
  std::optional<HeldFolder> held(std::in_place, scratch.folder);
  EXPECT_THROW(HeldFolder{scratch.folder}, InputError);
  held.reset();
  EXPECT_NO_THROW(HeldFolder{scratch.folder});
  EXPECT_TRUE(fs::exists(scratch.folder));
}

TEST(HeldFolder, GoesWhereNothingWasWritten) {
  const Scratch scratch;
  const fs::path empty = scratch.folder / "new" / "empty", full = scratch.folder / "full";
  { const HeldFolder held(empty); }
  EXPECT_FALSE(fs::exists(empty));
  {
    const HeldFolder held(full);
    std::ofstream(full / "file") << "kept";
  }
  EXPECT_TRUE(fs::exists(full / "file"));
}

TEST(HeldFolder, RefusesAFile) {
  const Scratch scratch;
  std::ofstream(scratch.folder / "file") << "kept";
  EXPECT_THROW(HeldFolder{scratch.folder / "file"}, InputError);
  EXPECT_THROW(HeldFolder{scratch.folder / "file" / "below"}, InputError);
  EXPECT_THROW(HeldFolder{""}, InputError);
}

}  // namespace
}  // namespace streambp
