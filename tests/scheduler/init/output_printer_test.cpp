// What workers print, on its way into a stream that nobody reads for a while.
#include "scheduler/init/output_printer.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>

#include "runtime/core/fd.hpp"

using namespace troupe;

namespace {

/// A pipe of one page, and whoever reads it: the test.
struct Reader {
  Reader() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    from = UniqueFd(ends[0]);
    to = UniqueFd(ends[1]);
    REQUIRE(::fcntl(to.get(), F_SETPIPE_SZ, 4096) >= 4096);
  }
  /// Until there are that many bytes, or none came for 20 s.
  std::string read(std::size_t bytes) {
    std::string text;
    pollfd wait{from.get(), POLLIN, 0};
    while (text.size() < bytes && ::poll(&wait, 1, 20'000) == 1) {
      char buffer[4096];
      const ssize_t got = ::read(from.get(), buffer, std::min(sizeof buffer, bytes - text.size()));
      if (got <= 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }
  UniqueFd from, to;
};

std::string repeated(const std::string& line, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += line;
  return text;
}

wire::Output lines(int count) {
  return {"p", false, repeated(std::string(95, 'x') + "\n", count), NodeId{7}};
}

/// The same as they are printed: 100 bytes each.
std::string labelled(int count) {
  return repeated("[p] " + std::string(95, 'x') + "\n", count);
}

}  // namespace

TEST_CASE("room is made on a node when its lines are written, and what nobody can take is counted") {
  // Was: lines were written by the thread that receives. A full pipe held up death notices and answers.
  Reader reader;
  std::atomic<std::size_t> taken{0};
  OutputPrinter printer(
      {[&](NodeId node, std::size_t bytes) { taken += node == NodeId{7} ? bytes : 0; }, [](int) {}}, 100'000,
      {reader.to.get(), reader.to.get()});
  printer.print(lines(500));
  printer.print(lines(500));
  CHECK(taken == 0);
  printer.print(lines(100));  // more than may wait
  CHECK(reader.read(50'000) == labelled(500));
  CHECK(reader.read(50'000) == labelled(500));
  printer.print(lines(1));
  const std::string told = "[100 lines were dropped: nobody read this program's output]\n";
  CHECK(reader.read(told.size() + 100) == told + labelled(1));
  CHECK(taken >= 96'000);  // without the labels
}

TEST_CASE("what waits at the end is written, and a stream that cannot be written is told once") {
  Reader reader;
  std::string text;
  {
    OutputPrinter printer({[](NodeId, std::size_t) {}, [](int) {}}, OutputPrinter::kMostBytes,
                          {reader.to.get(), reader.to.get()});
    printer.print(lines(1000));
    std::thread reads([&] { text = reader.read(100'000); });
    printer.finish();
    reads.join();
  }
  CHECK(text == labelled(1000));
  reader.from.reset();
  std::atomic<int> failures{0}, last{0};
  OutputPrinter alone({[](NodeId, std::size_t) {}, [&](int error) { ++failures, last = error; }},
                      OutputPrinter::kMostBytes, {reader.to.get(), reader.to.get()});
  alone.print(lines(1000));
  alone.print(lines(1));
  alone.finish();
  CHECK(failures == 1);
  CHECK(last == EPIPE);
}
