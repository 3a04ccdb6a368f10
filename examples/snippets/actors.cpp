// What docs/actors.md shows: light actors that wait by co_await, isolated ones that may block, a death that
// is heard of.
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <troupe/session.hpp>

using namespace std::chrono_literals;

// Isolated: a process of its own, so it may block, and dies alone.
struct Reader {
  std::int64_t count(const std::string& text) {
    if (text == "crash") std::abort();
    if (text.empty()) throw std::invalid_argument("there is no text");
    return static_cast<std::int64_t>(text.size());
  }
};

// Light: it shares its thread with thousands, so it never blocks it: co_await lets the others go on.
struct Counter {
  std::vector<troupe::ActorHandle<Reader>> readers;
  std::int64_t asked = 0;

  troupe::Task<std::int64_t> total(std::vector<std::string> texts) {
    std::vector<troupe::Future<std::int64_t>> asked_for;
    for (std::size_t i = 0; i < texts.size(); ++i)
      asked_for.push_back(readers[i % readers.size()].call<&Reader::count>(texts[i]));
    const auto counts = co_await troupe::when_all(asked_for);  // other calls of this actor run meanwhile
    ++asked;                                                   // one at a time: no lock
    co_return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  }
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  std::vector<troupe::ActorHandle<Reader>> readers;
  for (int i = 0; i < 2; ++i) readers.push_back(session.spawn<Reader>({.isolated = true}));
  auto counter = session.spawn<Counter>({.name = "counter"}, readers);  // a handle is an argument like others
  std::cout << counter.call<&Counter::total>({"two", "words"}).get(10s) << "\n";

  auto found = session.find<Counter>("counter");
  try {
    found.call<&Counter::total>({"text", ""}).get(10s);
  } catch (const troupe::TaskFailed& failed) {
    std::cout << failed.info().why << "\n";  // what the method threw
  }

  troupe::Promise<std::string> death;
  session.monitor(readers[0], [death](const std::string& reason) mutable { death.set(reason); });
  try {
    readers[0].call<&Reader::count>("crash").get(10s);
  } catch (const troupe::ActorDied&) {
    std::cout << "it died: " << death.future().get(10s) << "\n";
  }
}
