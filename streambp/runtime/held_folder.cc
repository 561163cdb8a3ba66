#include "streambp/runtime/held_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <system_error>
#include <unistd.h>

#include "streambp/error.h"

namespace streambp {

HeldFolder::HeldFolder(const std::filesystem::path& folder) : folder_(folder) {
  std::error_code error;
  created_ = std::filesystem::create_directories(folder, error);
  if (!error) {
    descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ < 0) error = {errno, std::generic_category()};
  }
  if (error) throw InputError("{}: the folder can't be created: {}", folder.string(), error.message());
  // Some file systems have no locks and say so.
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(descriptor_);
  throw InputError("{}: another run is writing to it", folder.string());
}

HeldFolder::~HeldFolder() {
  if (created_) ::rmdir(folder_.c_str());  // refused where anything is in it
  ::close(descriptor_);
}

}  // namespace streambp
