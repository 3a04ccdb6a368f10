#include "tests/collectives/host_traffic.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "collectives/native/region.hpp"

namespace troupe::collectives::testing {
namespace {

class Traffic {
 public:
  Traffic(const std::vector<int>& hosts, const Op& op, std::vector<LeafInterval> leaves,
          std::optional<Route> route)
      : op_(op),
        layout_(hosts),
        leaves_(leaves.empty() ? rank_leaves(static_cast<int>(hosts.size())) : std::move(leaves)),
        sums_(leaves_, layout_, 0) {
    Shape shape{
        .ranks = static_cast<int>(hosts.size()), .hosts = layout_.hosts(), .members = layout_.most_members()};
    const auto& nodes = op.how.op == ReduceOp::kPremulSum ? sums_.apart : sums_.of_host;
    shape.nodes = *std::max_element(nodes.begin(), nodes.end());
    shape.landing_bytes = landing_bytes(shape.hosts, shape.members);
    landing_ = shape.landing_bytes;
    found_.choice = choose_algorithm(op, shape);
    if (route) found_.choice.route = *route;
    plan_ = Plan(op, shape, found_.choice.algorithm);
    hosts_ = HostPlan(layout_, sums_, plan_, op, found_.choice.route);
    found_.rounds = plan_.rounds();
    frames_.resize(at(shape.hosts));
    sent_ = received_ = frames_;
    rank_frames_.resize(hosts.size());
    for (int rank = 0; rank < shape.ranks; ++rank) {
      found_.connections = std::max(found_.connections, layout_.peers(rank).size());
    }
  }

  HostTraffic run() {
    for (std::uint32_t round = 0; round < found_.rounds && found_.broken.empty(); ++round) {
      blobs(round);
      results(round);
    }
    const auto most = [](const std::vector<std::size_t>& of) {
      return *std::max_element(of.begin(), of.end());
    };
    found_.frames = most(frames_);
    found_.bytes = most(sent_);
    found_.rank_frames = most(rank_frames_);
    found_.received = most(received_);
    return found_;
  }

 private:
  using Blobs = std::vector<int>;  ///< of a host, by origin: after how many steps each is there
  static constexpr int kNever = -1;
  struct Frame {
    int from, to;
    std::vector<int> origins;
  };

  void broken(const std::string& why) {
    if (found_.broken.empty()) found_.broken = to_string(op_) + ": " + why;
  }

  void count(std::uint32_t round, int from, int to, std::size_t bytes) {
    ++frames_[at(from)];
    sent_[at(from)] += bytes;
    received_[at(to)] += bytes;
    ++rank_frames_[at(layout_.gateway_in(from, to, round))];
  }

  void blobs(std::uint32_t round) {
    const int hosts = layout_.hosts();
    std::vector<Frame> waiting;
    std::vector<Blobs> has(at(hosts), Blobs(at(hosts), kNever));
    for (int from = 0; from < hosts; ++from) {
      has[at(from)][at(from)] = 0;
      for (int to = 0; to < hosts; ++to) {
        if (from == to) continue;
        auto origins = hosts_.origins(round, from, to);
        if (!origins.empty()) waiting.push_back({from, to, std::move(origins)});
      }
    }
    for (bool moved = true; moved;) {
      moved = false;
      std::vector<Frame> left;
      for (Frame& frame : waiting) {  // goes out once what is in it has come
        const Blobs& here = has[at(frame.from)];
        if (!std::all_of(frame.origins.begin(), frame.origins.end(),
                         [&](int origin) { return here[at(origin)] != kNever; })) {
          left.push_back(std::move(frame));
          continue;
        }
        moved = true;
        deliver(round, frame, here, has[at(frame.to)]);
      }
      waiting = std::move(left);
    }
    if (!waiting.empty()) broken("a frame waits for what never comes");
    for (int to = 0; to < hosts; ++to) {
      for (int origin = 0; origin < hosts; ++origin) {
        if (origin == to || !hosts_.wants(round, origin, to)) continue;
        if (has[at(to)][at(origin)] == kNever) broken("a host does not get what it reads");
        if (layout_.most_members() <= 8 && hosts <= 16) parts(round, origin, to);
      }
    }
  }

  void deliver(std::uint32_t round, const Frame& frame, const Blobs& here, Blobs& there) {
    std::size_t bytes = 0;
    int step = 0;
    for (const int origin : frame.origins) step = std::max(step, here[at(origin)] + 1);
    for (const int origin : frame.origins) {
      const std::size_t blob = hosts_.blob_bytes(round, origin, frame.to);
      if (blob > landing_) broken("a blob of " + std::to_string(blob) + " bytes does not fit its landing");
      if (hosts_.via(origin, frame.to) != frame.from) broken("a blob comes another way than it should");
      if (std::exchange(there[at(origin)], step) != kNever) broken("a blob comes twice");
      bytes += blob;
    }
    if (bytes == 0 && op_.kind != OpKind::kBarrier && op_.kind != OpKind::kAllToAllV)
      broken("an empty frame");
    found_.steps = std::max(found_.steps, step);
    count(round, frame.from, frame.to, bytes);
  }

  /// What receivers read of a blob lies in it side by side.
  void parts(std::uint32_t round, int origin, int to) {
    std::map<std::size_t, std::size_t> lies;  // end by begin
    for (const int receiver : hosts_.receivers(round, origin, to)) {
      for (const int sender : layout_.members(origin)) {
        const std::size_t bytes = plan_.reads(round, sender, receiver).size() * element_size(op_.dtype);
        const bool of_host = plan_.sums();
        const std::size_t parts = of_host ? hosts_.parts_of(origin) : 1;
        for (std::size_t p = 0; p < parts && bytes != 0; ++p) {
          const std::size_t begin = hosts_.offset(round, sender, receiver, p);
          if (!lies.emplace(begin, begin + bytes).second && !of_host) broken("two parts lie in one place");
        }
        if (of_host) break;
      }
    }
    std::size_t end = 0;
    for (const auto& [from, until] : lies) {
      if (from != end) broken("parts of a blob do not lie side by side");
      end = until;
    }
    if (end != hosts_.bytes(round, origin, to)) broken("a blob has another length than its parts");
  }

  void results(std::uint32_t round) {
    bool any = false;
    for (int from = 0; from < layout_.hosts(); ++from) {
      for (int to = 0; to < layout_.hosts(); ++to) {
        if (from == to) continue;
        const std::size_t bytes = hosts_.result_bytes(round, from, to);
        if (bytes == 0) continue;
        any = true;
        count(round, from, to, bytes);
      }
    }
    if (any && round == 0) found_.steps += 1;
  }

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  const Op op_;
  const HostLayout layout_;
  const std::vector<LeafInterval> leaves_;
  const LeafSums sums_;
  Plan plan_;
  HostPlan hosts_;
  std::size_t landing_ = 0;
  HostTraffic found_;
  std::vector<std::size_t> frames_, sent_, received_;  ///< by host
  std::vector<std::size_t> rank_frames_;
};

}  // namespace

HostTraffic follow(const std::vector<int>& hosts, const Op& op, std::vector<LeafInterval> leaves,
                   std::optional<Route> route) {
  return Traffic(hosts, op, std::move(leaves), route).run();
}

std::vector<int> even_hosts(int hosts, int ranks) {
  std::vector<int> all;
  for (int rank = 0; rank < hosts * ranks; ++rank) all.push_back(rank / ranks);
  return all;
}

}  // namespace troupe::collectives::testing
