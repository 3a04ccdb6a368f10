#include "tests/simulation/line.hpp"

#include <algorithm>

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

void Line::to_server(World& world, const char* label, std::function<void()> what, std::size_t size) {
  const Instant sent = world.now();
  bytes += size;
  world.send(*client, *server, label, [this, &world, sent, size, what = std::move(what)] {
    bytes -= size;
    if (refused && bytes <= limit / 2) {
      refused = false;
      world.send(*server, *client, "~room", [this] {
        if (client_open) room();
      });
    }
    if (server_open && !(broken && sent >= lost_from)) what();
  });
}

void Line::to_client(World& world, const char* label, std::function<void()> what) {
  const Instant sent = world.now();
  world.send(*server, *client, label, [this, sent, what = std::move(what)] {
    if (client_open && !(broken && sent >= lost_from)) what();
  });
}

// Network. Lines live as long as it does: what is under way points to them.

void Network::add(const LinePtr& line) {
  lines_.push_back(line);
}

void Network::break_line(const LinePtr& line, Instant lost_from, const std::string& why) {
  if (std::exchange(line->broken, true)) return;
  line->lost_from = lost_from;
  const bool near = world_.reachable(line->client->host, line->server->host) &&
                    world_.reachable(line->server->host, line->client->host);
  const auto delay = [&] {
    return near ? world_.between(microseconds(50), milliseconds(50))
                : world_.between(milliseconds(50), seconds(6));
  };
  world_.after(*line->client, delay(), "line lost", [line, why] {
    if (std::exchange(line->client_open, false) && line->client_lost) line->client_lost(why);
  });
  world_.after(*line->server, delay(), "line lost", [line, why] {
    if (!std::exchange(line->server_open, false)) return;
    dynamic_cast<Server&>(*line->server).line_lost(line, why);
  });
}

void Network::process_died(const Process& process) {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const LinePtr& line = lines_[i];
    if (!line->broken && (line->client == &process || line->server == &process))
      break_line(line, world_.now(), process.name + " is gone");
  }
}

void Network::hosts_cut(int from, int to, Instant since) {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const LinePtr& line = lines_[i];
    const int client = line->client->host;
    const int server = line->server->host;
    if (!line->broken && ((client == from && server == to) || (client == to && server == from)))
      break_line(line, since, "it is silent");
  }
}

void Network::break_some() {
  std::vector<LinePtr> open;
  for (const LinePtr& line : lines_) {
    if (!line->broken && line->client_open && line->client->alive && line->server->alive)
      open.push_back(line);
  }
  // Those to the head are many, and mended without anybody's calls.
  const auto to_head = [](const LinePtr& line) { return dynamic_cast<Head*>(line->server) != nullptr; };
  if (world_.chance(0.7) && !std::all_of(open.begin(), open.end(), to_head)) std::erase_if(open, to_head);
  if (open.empty()) return;
  const LinePtr line = open[world_.random.below(open.size())];
  world_.trace("network", "the line of " + line->client->name + " to " + line->server->name + " breaks");
  break_line(line, world_.now() - world_.between(Duration{0}, milliseconds(3)), "connection reset");
}

// Dialer.

void Dialer::dial() {
  if (closed_ || is_up()) return;
  const std::uint64_t attempt = ++attempt_;
  const auto self = shared_from_this();
  Process* server = find_();
  if (server != nullptr && server->alive) {
    world_.send(self_, *server, "dial", [self, server, attempt] {
      auto line = std::make_shared<Line>(Line{&self->self_, server, self->id_});
      line->server_open = true;
      if (!dynamic_cast<Server&>(*server).accept(line)) return;
      self->network_.add(line);
      // What goes over it is lost from the beginning. (It was dialled before the hosts were cut off.)
      if (self->world_.loses(self->self_.host, server->host) ||
          self->world_.loses(server->host, self->self_.host))
        self->network_.break_line(line, self->world_.now(), "it is silent");
      self->world_.send(*server, self->self_, "accepted",
                        [self, line, attempt] { self->accepted(line, attempt); });
    });
  }
  world_.after(self_, world_.between(milliseconds(200), milliseconds(1500)), "~dial again", [self, attempt] {
    if (self->attempt_ == attempt) self->dial();
  });
}

void Dialer::accepted(const LinePtr& line, std::uint64_t attempt) {
  if (closed_ || is_up() || attempt != attempt_ || line->broken) {
    return network_.break_line(line, world_.now(), "it is not wanted");
  }
  line_ = line;
  line->client_open = true;
  line->limit = limit_;
  line->room = [self = weak_from_this()] {
    if (const auto dialer = self.lock()) dialer->on_room();
  };
  line->client_lost = [self = weak_from_this()](const std::string& why) {
    const auto dialer = self.lock();
    if (dialer == nullptr || dialer->closed_) return;
    dialer->line_ = nullptr;
    dialer->on_lost(why);
    dialer->dial();
  };
  on_connected();
}

void Dialer::close() {
  closed_ = true;
  if (line_ == nullptr) return;
  line_->client_open = false;
  network_.break_line(line_, world_.now(), "the other end closed it");
}

Sent Dialer::send(const char* label, std::function<void()> what, std::size_t size) {
  if (!is_up()) return Sent::kClosed;
  if (size != 0 && line_->bytes >= limit_) {
    line_->refused = true;
    return Sent::kFull;
  }
  line_->to_server(world_, label, std::move(what), size);
  return Sent::kQueued;
}

}  // namespace troupe::sim
