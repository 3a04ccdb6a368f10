/// A connection of the simulated network: what arrives is whole and in order, or the line has broken and both
/// ends hear of it, each at a time of its own. A line that is made again is another line.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/link/link.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

/// One session of a client with a server.
struct Line {
  Process* client = nullptr;
  Process* server = nullptr;
  NodeId from{};  ///< the client's
  bool client_open = false;
  bool server_open = false;
  bool broken = false;
  std::function<void(const std::string&)> client_lost;
  Instant lost_from{};         ///< once broken: what was sent since then never arrives
  std::size_t bytes = 0;       ///< of frames on their way to the server
  std::size_t limit = 0;       ///< of it
  bool refused = false;        ///< one of them found no room
  std::function<void()> room;  ///< at the client, once half of it is free
  void to_server(World& world, const char* label, std::function<void()> what, std::size_t size);
  void to_client(World& world, const char* label, std::function<void()> what);
};
using LinePtr = std::shared_ptr<Line>;

/// A process that takes lines.
struct Server {
  virtual ~Server() = default;
  /// False: its key is not known here.
  virtual bool accept(const LinePtr& line) = 0;
  virtual void line_lost(const LinePtr& line, const std::string& why) = 0;
};

/// All lines that may be open.
class Network {
 public:
  explicit Network(World& world) : world_(world) {}
  void add(const LinePtr& line);
  /// Each end hears of it after a while: soon if the other can be reached, else when its heartbeats stay out.
  void break_line(const LinePtr& line, Instant lost_from, const std::string& why);
  /// The lines of a process that has died, or between two hosts whose cut loses or lasts.
  void process_died(const Process& process);
  void hosts_cut(int from, int to, Instant since);
  /// Breaks one of the open lines, with messages under way.
  void break_some();

 private:
  World& world_;
  std::vector<LinePtr> lines_;
};

/// Keeps a line to a server, and makes it again when it breaks, until it is closed.
class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  using Find = std::function<Process*()>;
  Dialer(World& world, Network& network, Process& self, NodeId id, Find find,
         std::size_t limit = kLinkQueueBytes)
      : world_(world), network_(network), self_(self), id_(id), find_(std::move(find)), limit_(limit) {}

  std::function<void()> on_connected;
  std::function<void(const std::string&)> on_lost;
  std::function<void()> on_room = [] {};  ///< after a kFull
  void dial();
  void close();
  /// Drops the line there is; on_lost, and a new one.
  void redial() {
    if (is_up()) network_.break_line(line_, world_.now(), "its end made it anew");
  }
  bool is_up() const { return line_ != nullptr && line_->client_open; }
  /// kClosed: there is no line. `size`: what it takes of the line's queue; 0: nothing.
  Sent send(const char* label, std::function<void()> what, std::size_t size = 0);

 private:
  void accepted(const LinePtr& line, std::uint64_t attempt);
  World& world_;
  Network& network_;
  Process& self_;
  const NodeId id_;
  const Find find_;
  const std::size_t limit_;
  LinePtr line_;
  std::uint64_t attempt_ = 0;
  bool closed_ = false;
};

}  // namespace troupe::sim
