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
  return {"p", false, repeated(std::string(95, 'x') + "\n", count)};
}

/// The same as they are printed: 100 bytes each.
std::string labelled(int count) {
  return repeated("[p] " + std::string(95, 'x') + "\n", count);
}

}  // namespace

TEST_CASE("a full stream holds workers back, and lets them go on when it was read") {
  // Was: lines were written by the thread that receives. A full pipe held up death notices and answers.
  Reader reader;
  std::atomic<int> held{0}, let_go{0};
  OutputPrinter printer([&](bool on) { ++(on ? held : let_go); }, {.hold = 20'000, .drop = 40'000},
                        {reader.to.get(), reader.to.get()});
  printer.print(lines(150));
  CHECK(held == 0);
  printer.print(lines(100));
  CHECK(held == 1);
  printer.print(lines(100));  // was on its way
  printer.print(lines(100));  // more than may wait
  CHECK(held == 1);
  CHECK(let_go == 0);
  printer.repeat_hold();
  CHECK(held == 2);
  CHECK(reader.read(35'000) == labelled(350));
  CHECK(let_go == 1);
  printer.print(lines(1));
  const std::string told = "[100 lines were dropped: nobody read this program's output]\n";
  CHECK(reader.read(told.size() + 100) == told + labelled(1));
}

TEST_CASE("what waits at the end is written, and a stream without a reader ends nothing") {
  Reader reader;
  std::string text;
  {
    OutputPrinter printer([](bool) {}, {}, {reader.to.get(), reader.to.get()});
    printer.print(lines(1000));
    std::thread reads([&] { text = reader.read(100'000); });
    printer.finish();
    reads.join();
  }
  CHECK(text == labelled(1000));
  OutputPrinter alone([](bool) {}, {}, {reader.to.get(), reader.to.get()});
  reader.from.reset();
  alone.print(lines(1000));
}
