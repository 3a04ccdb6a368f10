/// A process of a user, as the floor sees it: it says hello to its node, asks it, calls others and hears when
/// they are gone. A model of runtime/host, which is no pure machine yet.
#pragma once

#include <any>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "runtime/wire/messages.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;
struct Node;
struct Hosted;

/// A frame whose body is not bytes but what the receiver does with it.
struct Frame {
  wire::FrameHeader header;
  const char* label = "frame";
  std::optional<wire::Control> control;
  std::function<void(Hosted&, const std::shared_ptr<const Frame>&)> run;  ///< a call, at its receiver
  std::any value;                                                         ///< of a reply
  ErrorInfo error;                                                        ///< of a reply with kFlagError
};
using FramePtr = std::shared_ptr<const Frame>;

struct Hosted : Process {
  Hosted(Cluster& in, Node& on, ProcessId as, std::string process_name, int on_host);

  /// From its node.
  virtual void on_control(const wire::Control& message);
  void on_frame(const FramePtr& frame);
  /// To its node.
  void to_node(const char* label, wire::Control message);
  /// Answered by its node, once. Without a word from it for ever: the node is gone, and so is this process.
  void ask(const char* label, std::uint64_t request, wire::Control message,
           std::function<void(const wire::Answer&)> done);
  std::uint64_t next_request() { return ++requests_; }

  using Run = std::function<void(Hosted&, const FramePtr&)>;
  using Done = std::function<void(const Frame& reply)>;
  void tell(const ProcessAddress& to, const char* label, Run run);
  void call(const ProcessAddress& to, const char* label, Run run, Done done);
  /// `down` is called once, when the actor has ended. A link that breaks is no end: it is asked again.
  void monitor(const ActorAddress& actor, std::function<void(const std::string&)> down);
  void reply(const Frame& call, std::any value);
  ProcessAddress address() const;

  Cluster& cluster;
  Node* node;
  ProcessId process;
  JobId job{};
  struct Open {
    std::string what;
    Instant since{};
    bool may_last = false;  ///< a monitor
    ProcessAddress to;
    std::function<void(const Frame&)> done;
    std::function<void(const wire::Answer&)> answered;
  };
  std::map<std::uint64_t, Open> calls;  ///< without a reply
  std::map<std::uint64_t, Open> asked;  ///< of its node, without an answer

 protected:
  void start_pulse();

 private:
  void send(Frame frame);
  void fail_calls(const std::function<bool(const ProcessAddress&)>& which, const ErrorInfo& error);
  std::uint64_t requests_ = 0;
  std::uint64_t call_ids_ = 0;
};

}  // namespace troupe::sim
