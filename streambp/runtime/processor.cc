#include "streambp/runtime/processor.h"

#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <sys/syscall.h>
#include <unistd.h>

namespace streambp {
#if defined(__x86_64__)
namespace {

sigjmp_buf after_refusal;

void refuse(int) {
  siglongjmp(after_refusal, 1);
}

/// Whether a tile instruction runs, once Linux has been asked for the tile registers.
bool tiles_work() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return false;
  struct sigaction probe = {}, before = {};
  probe.sa_handler = refuse;
  sigaction(SIGILL, &probe, &before);
  volatile bool works = false;
  if (sigsetjmp(after_refusal, /*savemask=*/1) == 0) {
    __asm__ volatile(".byte 0xc4, 0xe2, 0x7b, 0x49, 0xc0" ::: "memory");  // tilezero tmm0
    works = true;
  }
  sigaction(SIGILL, &before, nullptr);
  return works;
}

}  // namespace

void avoid_refused_instructions() {
  if (!tiles_work()) setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);
}
#else
void avoid_refused_instructions() {}
#endif

}  // namespace streambp
