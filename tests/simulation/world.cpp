#include "tests/simulation/world.hpp"

#include <algorithm>
#include <cstdio>

namespace troupe::sim {
namespace {

std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

void World::add(Process& process) {
  process.id = ++processes_;
}

void World::push(Event event) {
  if (ended_) return;
  event.number = ++numbers_;
  queue_.push_back(std::move(event));
  std::push_heap(queue_.begin(), queue_.end(), std::greater<>{});
}

void World::after(Process& process, Duration delay, const char* label, std::function<void()> what) {
  push({now() + delay, 0, &process, nullptr, {}, label, std::move(what)});
}

void World::every(Process& process, Duration interval, const char* label, std::function<void()> what) {
  after(process, interval, label, [this, &process, interval, label, what = std::move(what)] {
    what();
    every(process, interval, label, what);
  });
}

void World::outside(Duration delay, const char* label, std::function<void()> what) {
  push({now() + delay, 0, nullptr, nullptr, {}, label, std::move(what)});
}

void World::send(Process& from, Process& to, const char* label, std::function<void()> what) {
  if (ended_) return;
  const std::pair hosts(from.host, to.host);
  Event event{{}, 0, &to, &from, now(), label, std::move(what)};
  if (const auto cut = cuts_.find(hosts); cut != cuts_.end()) {
    if (!cut->second) held_[hosts].push_back(std::move(event));
    return;
  }
  const bool near = from.host == to.host;
  const Duration delay =
      near ? between(microseconds(5), microseconds(200)) : between(microseconds(50), milliseconds(4));
  Instant& busy = link_busy_until_[{from.id, to.id}];
  busy = std::max(busy, now() + delay);
  event.at = busy;
  push(std::move(event));
}

void World::cut(int from, int to, bool lose) {
  cuts_.try_emplace({from, to}, lose);  // one that is cut already stays as it is
}

void World::heal(int from, int to) {
  const auto cut = cuts_.find({from, to});
  if (cut == cuts_.end()) return;
  cuts_.erase(cut);
  const auto held = held_.extract({from, to});
  if (!held.empty()) {
    for (Event& event : held.mapped()) {
      if (event.process->alive) send(*event.sender, *event.process, event.label, std::move(event.what));
    }
  }
}

void World::kill(Process& process, const char* why) {
  if (!process.alive) return;
  process.alive = false;
  process.lost_after = now() - between(Duration{0}, milliseconds(3));
  waiting_.erase(&process);
  trace(process.name, std::string("killed: ") + why);
  if (on_kill) on_kill(process);
  if (process.on_death) process.on_death();
}

void World::stop(Process& process) {
  process.stopped = process.alive;
  trace(process.name, "stopped");
}

void World::resume(Process& process) {
  if (!process.stopped) return;
  process.stopped = false;
  trace(process.name, "continued");
  auto waiting = waiting_.extract(&process);
  if (waiting.empty()) return;
  for (Event& event : waiting.mapped()) {
    event.at = now();
    push(std::move(event));
  }
}

void World::end() {
  ended_ = true;
  // What goes with the events may say something last.
  std::exchange(queue_, {}).clear();
  std::exchange(waiting_, {}).clear();
  std::exchange(held_, {}).clear();
}

bool World::step() {
  if (queue_.empty()) return false;
  std::pop_heap(queue_.begin(), queue_.end(), std::greater<>{});
  Event event = std::move(queue_.back());
  queue_.pop_back();
  clock.set(event.at);
  run(event);
  return true;
}

void World::run(Event& event) {
  Process* process = event.process;
  if (process != nullptr && !process->alive) return;
  if (event.sender != nullptr && !event.sender->alive && event.sent >= event.sender->lost_after) return;
  if (process != nullptr && process->stopped) {
    waiting_[process].push_back(std::move(event));
    return;
  }
  ++events_;
  if (event.label[0] != '~') {
    tell(process == nullptr ? "harness" : process->name,
         event.sender == nullptr ? event.label : std::string(event.label) + "  <- " + event.sender->name);
  }
  trace_ = mix(mix(trace_, static_cast<std::uint64_t>(event.at.count())),
               hash_text(event.label) ^ static_cast<std::uint64_t>(process == nullptr ? 0 : process->id));
  if (process == nullptr) return event.what();
  process->run(event.what);
}

void World::trace(std::string_view who, std::string_view text) {
  trace_ = mix(trace_, hash_text(text) ^ hash_text(who));
  tell(who, text);
}

void World::tell(std::string_view who, std::string_view what) {
  if (ended_) return;
  constexpr std::size_t kMost = 100;
  if (verbose_) {
    std::printf("%11.5f s  %-14.*s %.*s\n", to_seconds(now()), static_cast<int>(who.size()), who.data(),
                static_cast<int>(what.size()), what.data());
  }
  if (!violated_.empty()) return;
  if (told_.size() == kMost) told_.pop_front();
  told_.push_back({now(), std::string(who), std::string(what)});
}

std::vector<std::string> World::story() const {
  std::vector<std::string> lines;
  for (const Told& told : told_) {
    char text[64];
    std::snprintf(text, sizeof text, "%11.5f s  %-14s ", to_seconds(told.at), told.who.c_str());
    lines.push_back(text + told.what);
  }
  return lines;
}

void World::violation(const std::string& what) {
  trace("INVARIANT", what);
  if (violated_.empty()) violated_ = what;
}

}  // namespace troupe::sim
