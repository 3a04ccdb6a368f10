#include "collectives/rendezvous/exchange.hpp"

#include <algorithm>
#include <cstdio>

#include "runtime/core/byte_codec.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kChunkBytes = 56 * 1024;
constexpr std::size_t kMaxExchangeBytes = 48 * 1024;
constexpr Duration kGrace = std::chrono::milliseconds(500);
constexpr char kGood = '+';
constexpr char kFailed = '!';

std::string key_of(const std::string& topic, int rank) {
  return topic + "/" + std::to_string(rank);
}
std::string chunk_key(const std::string& topic, int chunk) {
  return topic + "/all/" + std::to_string(chunk);
}

ErrorInfo timed_out(std::string why, const ExchangeOptions& options) {
  return {ErrorCode::kTimeout, options.purpose, std::move(why),
          "start every rank, with the same address and size, or raise the timeout"};
}

/// Which ranks have not come, as a sentence; empty: all have.
std::string missing(Store& store, const std::string& topic, const ExchangeOptions& options) {
  std::string ranks;
  int n = 0;
  for (int r = 0; r < options.size; ++r) {
    if (store.find(key_of(topic, r))) continue;
    ranks += (n++ == 0 ? "" : ", ") + options.name(r);
  }
  if (n == 0) return {};
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", to_seconds(options.timeout));
  return (n == 1 ? "rank " : "ranks ") + ranks + " of " + std::to_string(options.size) +
         (n == 1 ? " is" : " are") + " missing after " + seconds + " s";
}

void publish(Store& store, const std::string& topic, const std::vector<std::string>& values) {
  int chunk = 0;
  std::vector<std::byte> bytes;
  const auto flush = [&] {
    store.set(chunk_key(topic, chunk++),
              kGood + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    bytes.clear();
  };
  for (const auto& value : values) {
    if (!bytes.empty() && bytes.size() + 4 + value.size() > kChunkBytes) flush();
    ByteWriter(bytes).write(static_cast<std::uint32_t>(value.size())).write(std::string_view(value));
  }
  flush();
}

/// Takes the values of one chunk; false: it does not decode.
bool take(const std::string& chunk, std::vector<std::string>& values) {
  ByteReader reader(std::as_bytes(std::span(chunk)).subspan(1));
  while (!reader.done()) {
    std::uint32_t bytes = 0;
    std::string value;
    if (!reader.read(bytes) || !reader.read(value, bytes)) return false;
    values.push_back(std::move(value));
  }
  return true;
}

}  // namespace

std::vector<std::string> exchange(Store& store, const std::string& topic, std::string_view value,
                                  const ExchangeOptions& options) {
  if (value.size() > kMaxExchangeBytes) {
    throw_error({ErrorCode::kLimit, options.purpose,
                 "a rank has " + std::to_string(value.size()) + " bytes to tell the others",
                 "the limit is 48 KiB"});
  }
  const MonotonicClock clock;
  const Instant until = clock.now() + options.timeout;
  const auto left = [&] { return std::max(until - clock.now(), Duration::zero()); };
  store.set(key_of(topic, options.rank), value);
  std::vector<std::string> values;
  if (options.rank == 0) {
    for (int r = 0; r < options.size; ++r) {
      auto found = store.find(key_of(topic, r), left());
      if (!found) {
        auto error = timed_out(missing(store, topic, options) + options.hint(), options);
        // Whoever waits for the values learns at once why there are none.
        store.set(chunk_key(topic, 0), kFailed + error.why);
        throw_error(std::move(error));
      }
      values.push_back(*std::move(found));
    }
    publish(store, topic, values);
    return values;
  }
  for (int chunk = 0; values.size() < static_cast<std::size_t>(options.size); ++chunk) {
    // Longer than rank 0 waits, which knows best why somebody is missing.
    const auto found = store.find(chunk_key(topic, chunk), left() + kGrace);
    if (!found) {
      auto why = missing(store, topic, options);
      throw_error(
          timed_out(why.empty() ? "rank " + options.name(0) + " did not gather the others" : why, options));
    }
    if (found->starts_with(kFailed)) throw_error(timed_out(found->substr(1), options));
    if (!found->starts_with(kGood) || !take(*found, values) ||
        values.size() > static_cast<std::size_t>(options.size)) {
      throw_error({ErrorCode::kBadInput, options.purpose, "what rank 0 gathered does not decode",
                   "the ranks run different builds"});
    }
  }
  return values;
}

}  // namespace troupe::collectives
