// A server in a process that is out of memory for a moment: in an executable of its own, whose allocations
// can be refused.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "runtime/http/server.hpp"
#include "tests/actors/serve/http/raw_client.hpp"

namespace {

std::atomic<std::size_t> refused_bytes{0};  // an allocation of so many fails
std::atomic<int> refused{0};

}  // namespace

__attribute__((noinline)) void* operator new(std::size_t bytes) {
  void* memory = bytes == refused_bytes ? nullptr : std::malloc(bytes);
  if (memory != nullptr) return memory;
  ++refused;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

using namespace troupe::http;

// Nobody was accepted from then on.
TEST_CASE("a server that had no memory for a connection accepts the next one") {
  const Handler echo = [](Request, Answer answer) { answer({.body = "here"}); };
  constexpr std::size_t kHeader = 4321, kRead = 16384;  // a connection's buffer
  Server server({.port = 0, .threads = 1, .max_header_bytes = kHeader}, echo);
  REQUIRE(RawClient(server.address().port).ask(get("/")).body == "here");
  refused_bytes = kHeader + kRead;
  CHECK(RawClient(server.address().port).ask(get("/")).status == 0);
  refused_bytes = 0;
  REQUIRE(refused == 1);
  CHECK(RawClient(server.address().port).ask(get("/")).body == "here");
}
