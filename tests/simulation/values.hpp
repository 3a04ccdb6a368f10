/// Objects beside the job: actors that put values in small stores, read them, pass references on and let go,
/// while disks are full and processes, nodes and links go. A value is what was put, or lost with who put it;
/// when the program ends, no reference, copy, byte or file is left.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/client/session.hpp"
#include "runtime/objects/object_name.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;
struct Hosted;

using Words = std::vector<std::uint64_t>;

/// What is true of the values, whoever knows it.
class Values {
 public:
  explicit Values(Cluster& cluster) : cluster_(cluster) {}

  /// What `by` is to put next.
  Words make(const Hosted& by);
  void has_put(const ObjectRef<Words>& value, const Words& words, const Hosted& by);
  /// A task has: `value` is what `by` submitted, or holds.
  /// `retries`: so often may its task run again for it.
  void has_computed(const ObjectRef<Words>& value, const Words& words, const Hosted& by, int retries = 0);
  /// `copy` is to have the same words, which `by` has submitted.
  void copies(const ObjectRef<Words>& value, const ObjectRef<Words>& copy, const Hosted& by, int retries);
  /// `by` read that.
  void read(const ObjectRef<Words>& value, std::span<const std::uint64_t> words, const Hosted& by);
  /// `by` hears what reading it in its place came to.
  void heard_sum(const ObjectRef<Words>& value, std::uint64_t sum, const Hosted& by);
  // What ended so.
  void not_put(const ErrorInfo& error, std::size_t bytes, const Hosted& by);
  /// A reading.
  void not_read(const ErrorInfo& error, const ObjectRef<Words>& value, const Hosted& by);
  /// A call that reads or passes on; of no value: one that asks for some.
  void failed(const ErrorInfo& error, const ObjectRef<Words>& value, const Hosted& by);

  /// The program comes to its end: everybody lets go.
  void end();
  bool is_over() const { return over_at_ != Instant{}; }
  /// What of objects is held by processes, in stores and on disks; empty: nothing.
  std::string left() const;
  /// Every now and then: all of it is gone so long after the end and the last fault.
  void look(Duration bound);

  long put = 0;
  long computed = 0;
  long values_read = 0;
  long no_room = 0;         ///< puts, and readings
  long lost = 0;            ///< with who had put them
  long written = 0;         ///< to disk, in pieces
  long writes_refused = 0;  ///< files and pieces

 private:
  struct Value {
    const Hosted* owner = nullptr;
    std::uint64_t number = 0;
    std::size_t words = 0;
    std::uint64_t sum = 0;
    Instant made_at{};
    int retries = 0;           ///< of the task that computes it
    objects::ObjectName of{};  ///< which that reads
  };
  std::string why_not_lost(std::string_view why, const objects::ObjectName& name, const Hosted& by) const;
  Cluster& cluster_;
  std::map<objects::ObjectName, Value> all_;
  std::uint64_t numbers_ = 0;
  Instant over_at_{};
};

/// Puts, reads and submits tasks. An isolated one waits for room, and for what others have; a light one puts
/// into its process's own memory, and reads what calls bring.
class PutterActor {
 public:
  PutterActor();

  /// Those that there are.
  void meet(const std::vector<ActorHandle<PutterActor>>& all);
  /// A reference to keep.
  void keep(const ObjectRef<Words>& value);
  /// What reading the value in its place comes to.
  std::uint64_t sum(const View<std::uint64_t>& words);
  /// One of those that it holds.
  ObjectRef<Words> give();

 private:
  void step();
  void put();
  void read();
  void call_another();
  void show(const ActorHandle<PutterActor>& other, const ObjectRef<Words>& value);
  void show_all();
  void hold(const ObjectRef<Words>& value);
  void let_go();
  void submit();
  void submit_some(const tasks::Submitter& to, int retries);
  void compute(const tasks::Submitter& to, int retries);
  void submit_waiting(int retries);
  void submit_more();
  const ObjectRef<Words>& any() const;
  template <class T, class Then>
  void await(const Future<T>& answer, const ObjectRef<Words>& of, Then then);
  template <class T, class Then>
  void await_task(std::uint64_t task, const Future<T>& answer, const ObjectRef<Words>& of, Then then);

  ActorContext& me_;
  Hosted& process_;
  Cluster& cluster_;
  std::vector<ActorHandle<PutterActor>> others_;
  std::vector<ObjectRef<Words>> held_;
  View<std::uint64_t> view_;
  int under_way_ = 0;  ///< calls
  int greedy_ = 0;     ///< tasks of which there are always so many
};

/// Has so many of them, on any node, and tells each of all. A light actor of the program.
class PutterSpawner {
 public:
  PutterSpawner();

 private:
  void fill(std::size_t at);
  void introduce();
  ActorContext& me_;
  Hosted& process_;
  Cluster& cluster_;
  std::vector<ActorHandle<PutterActor>> putters_;
};

}  // namespace troupe::sim
