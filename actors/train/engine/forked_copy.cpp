#include "actors/train/engine/forked_copy.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "actors/ddp/freed_memory.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

/// What is asked of the child: bytes of the state, or, of kReader, that the process `offset` may read its
/// memory, which it answers with a byte.
struct Request {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
constexpr std::uint64_t kReader = ~std::uint64_t{0};

bool read_all(int fd, void* into, std::size_t size) {
  auto* at = static_cast<std::byte*>(into);
  while (size > 0) {
    const ssize_t got = ::read(fd, at, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* from, std::size_t size) {
  const auto* at = static_cast<const std::byte*>(from);
  while (size > 0) {
    const ssize_t sent = ::send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

}  // namespace

ForkedCopy::ForkedCopy(const std::vector<StatePart>& parts) : StateCopy(parts) {
  const auto layout = checkpoint::lay_out_safetensors(parts).value();
  size_ = layout.total_bytes;
  std::vector<Run> runs{{0, std::as_bytes(std::span(layout.prefix))}};
  for (const auto& part : layout.order)
    runs.push_back({runs.back().begin + runs.back().bytes.size(), part.bytes});
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw IoError(io_error("cannot share the state", errno));
  requests_ = UniqueFd(ends[0]);
  const UniqueFd childs(ends[1]);
  const pid_t parent = ::getpid();
  // Of free memory that steps take again the child would keep each page, as it is now.
  give_back_freed_memory();
  // Not fork(): that would run the handlers of the libraries, which are for children that go on with the
  // program.
  child_ = ::_Fork();
  if (child_ < 0)
    throw IoError(io_error("cannot share the state", errno, "its process has no room for a copy"));
  if (child_ == 0) serve(childs.get(), parent, runs);
  memory_.pid = child_;
  for (const Run& run : runs)
    memory_.runs.push_back({reinterpret_cast<std::uintptr_t>(run.bytes.data()), run.bytes.size()});
}

/// The other threads are not there and may have held any lock: system calls alone.
void ForkedCopy::serve(int fd, pid_t parent, std::span<const Run> runs) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGTERM, SIG_IGN);  // its trainer, which ends it, goes on at one
  // It holds nothing of the parent's open: what waits for the parent's end would wait for its child's.
  if (::getppid() != parent || ::dup2(fd, 0) != 0) ::_exit(1);
  ::syscall(SYS_close_range, 1U, ~0U, 0U);
  for (Request request; read_all(0, &request, sizeof request);) {
    if (request.bytes == kReader) {
#ifdef PR_SET_PTRACER
      ::prctl(PR_SET_PTRACER, request.offset);  // fails where there is no Yama, and nothing to allow
#endif
      const std::byte done{1};
      if (!write_all(0, &done, sizeof done)) ::_exit(1);
      continue;
    }
    for (const Run& run : runs) {
      const std::uint64_t begin = std::max(run.begin, request.offset);
      const std::uint64_t end = std::min(run.begin + run.bytes.size(), request.offset + request.bytes);
      if (begin < end && !write_all(0, run.bytes.data() + (begin - run.begin), end - begin)) ::_exit(1);
    }
  }
  ::_exit(0);
}

void ForkedCopy::read(std::uint64_t offset, std::span<std::byte> into) {
  const Request request{offset, into.size()};
  if (!write_all(requests_.get(), &request, sizeof request) ||
      !read_all(requests_.get(), into.data(), into.size()))
    throw IoError(io_error("the copy of the state is gone", ECHILD, "its process was killed"));
}

std::optional<StateMemory> ForkedCopy::memory(std::int32_t reader) {
  const Request request{static_cast<std::uint64_t>(reader), kReader};
  std::byte done{};
  if (!write_all(requests_.get(), &request, sizeof request) || !read_all(requests_.get(), &done, sizeof done))
    return std::nullopt;
  return memory_;
}

bool read_memory(const StateMemory& from, std::span<std::byte> into,
                 const std::function<void(std::span<const std::byte>)>& came) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  // process_vm_readv pins what it reads: for that the kernel first makes a page of its own for the copy's
  // process of each that it shares with the process that forked, which takes longer than reading it.
  const std::string path = "/proc/" + std::to_string(from.pid) + "/mem";
  const UniqueFd memory(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!memory) return false;
  for (const StateMemory::Run& run : from.runs) {
    if (run.bytes > into.size()) return false;
    for (std::uint64_t at = 0; at < run.bytes;) {
      const auto size = static_cast<std::size_t>(std::min(run.bytes - at, kPiece));
      const ssize_t got = ::pread(memory.get(), into.data(), size, static_cast<off_t>(run.address + at));
      if (got <= 0) return false;
      came(into.first(static_cast<std::size_t>(got)));
      at += static_cast<std::uint64_t>(got);
      into = into.subspan(static_cast<std::size_t>(got));
    }
  }
  return into.empty();
}

ForkedCopy::~ForkedCopy() {
  ::kill(child_, SIGKILL);
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace troupe::train
