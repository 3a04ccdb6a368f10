/// This process's link to its node: requests and answers, signs of life, and frames on their way to and from
/// other nodes.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/host/call_state.hpp"
#include "runtime/host/node_channel.hpp"
#include "runtime/host/request_queue.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// Of what was under way when this process's own node died, or was asked for since: `why` it died.
ErrorInfo own_node_gone(std::string what, const std::string& why, std::string todo);
inline constexpr const char* kSpawnThere = "its driver gets another node: spawn actors there again";
inline constexpr const char* kSubmitThere = "its driver gets another node: submit it again";
inline constexpr const char* kStartAgain = "start the program again";

/// Thread-safe. Handlers run in the channel's thread.
///
/// A node answers the pulses of a driver. One that says nothing for kPulses of them (6 s, as between node and
/// head) hangs or is stopped: a driver has lost it as if it had died.
class NodeLink {
 public:
  static constexpr int kPulses = 6;
  struct Handlers {
    std::function<void(Message)> on_message;  ///< everything but answers to `ask`
    std::function<void()> on_room;            ///< after a send was refused with kFull
    /// Once, before what was asked fails: who tries again on such a failure is told that it is in vain.
    std::function<void(const std::string& why)> on_losing;
    std::function<void(const std::string& why)>
        on_lost;  ///< once; the node is gone, or nothing it says makes sense
  };

  NodeLink(ProcessAddress self, std::unique_ptr<NodeChannel> channel);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  /// Says hello (with the process's doorbell) and begins to receive. Throws Unavailable when the link is
  /// dead.
  void start(UniqueFd doorbell, Handlers handlers);
  /// No handler runs any more.
  void stop();
  /// This process is a driver: from now on the node must not be silent.
  void watch() { is_watched_ = true; }
  /// Fails what was asked and has no answer, and whatever is asked from now on. No handler hears of it.
  void give_up(const std::string& why);

  Sent send(const wire::FrameHeader& header, wire::ByteView body) { return channel_->send(header, body); }
  /// What is lost only together with the link. Does not wait: what finds no room goes when there is some, in
  /// order.
  void tell(const wire::Control& message);

  using MakeRequest = std::function<wire::Control(std::uint64_t request)>;
  struct Request {
    std::uint64_t number = 0;
    std::shared_ptr<CallState> state;  ///< resolved with the encoded answer
  };
  /// Asks the node, in turn (RequestQueue). `waiter` is what receives while somebody waits for the answer;
  /// null: nothing.
  Request ask(const MakeRequest& make, Waiter* waiter);
  /// Why a spawn or an awaited group has no answer yet, as the node tells.
  void waits(std::uint64_t request, std::string why);
  /// Nobody wants what that asked for: a spawn, or a question about a group.
  void cancel(std::uint64_t request);
  /// The descriptors that came with an answer; once.
  std::vector<UniqueFd> take_fds(std::uint64_t request);

 private:
  /// False: it does not decode.
  bool on_answer(Message message);
  bool on_pulse();
  void lost(const std::string& why);
  /// REQUIRES: mutex_ is held where the order of messages matters. flush_unsent() sends them.
  void queue_unsent(const RequestQueue::Messages& messages);
  void flush_unsent();

  const ProcessAddress self_;
  const std::unique_ptr<NodeChannel> channel_;
  Handlers handlers_;
  std::mutex mutex_;  ///< guards what follows, to the next blank line
  std::unordered_map<std::uint64_t, std::shared_ptr<CallState>> asked_;
  std::unordered_map<std::uint64_t, std::vector<UniqueFd>> answered_fds_;
  RequestQueue requests_;
  std::string lost_;  ///< why, once the node is gone

  struct Unsent {
    wire::FrameHeader header;
    wire::Bytes body;
  };
  std::mutex unsent_mutex_;
  std::deque<Unsent> unsent_;  ///< control messages that found no room; under unsent_mutex_

  std::atomic<std::uint64_t> next_{1};

  // Of the channel's thread. Pulses are counted and not seconds: a program that was stopped itself, or had no
  // CPU, has sent none meanwhile.
  int unanswered_ = 0;  ///< pulses since its last word
  std::atomic<bool> is_watched_{false};
};

}  // namespace troupe
