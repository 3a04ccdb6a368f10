#include "runtime/core/output_turn.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace troupe {
namespace {

std::atomic<OutputTurn*> shared_turn{nullptr};
int errors_pipe = -1;  ///< as it was: the task's code may point standard error elsewhere

}  // namespace

void share_output_turn(OutputTurn& memory) {
  errors_pipe = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  shared_turn = &memory;
}

void begin_output_turn() {
  OutputTurn* const memory = shared_turn;
  if (memory == nullptr) return;
  int unread = 0;
  if (::ioctl(errors_pipe, FIONREAD, &unread) != 0) unread = 0;
  // What the node reads in between counts as of the turn before, so that too much is left out, never too
  // little.
  memory->unread = static_cast<std::uint32_t>(std::max(0, unread));
  ++memory->turn;
}

}  // namespace troupe
