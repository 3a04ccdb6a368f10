/// Connections to other nodes, and the frames that wait for them (peers.hpp decides on them).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/link/transport.hpp"
#include "runtime/node/event_loop.hpp"
#include "runtime/node/node_events.hpp"

namespace troupe::node {

/// The transport's name of a node: its id, as its key was allowed under.
PeerName name_of(NodeId node);
/// 0: not a node's name.
NodeId node_of(const PeerName& name);

/// Everything runs in the loop's thread.
class PeerLinks {
 public:
  struct Hooks {
    std::function<void(NodeEvent)> tell;
    std::function<void(const wire::FrameHeader&, const ErrorInfo&)> refuse;
  };
  PeerLinks(EventLoop& loop, Transport& transport, CurveKeyPair keys, std::size_t stuck_bytes, Hooks hooks);
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  void connect(const cluster::NodeInfo& peer);
  void disconnect(NodeId node);
  /// Keeps a frame until `release`.
  void hold(NodeId node, const wire::FrameHeader& header, wire::Bytes frame);
  void release(NodeId node);
  void refuse_held(NodeId node, const ErrorInfo& error);
  /// Sends, or keeps until there is room, or refuses (route.hpp, when_full). False: it is lost, and nobody
  /// waits here for it.
  bool send(NodeId node, const wire::FrameHeader& header, wire::Bytes frame);

 private:
  struct Held {
    wire::FrameHeader header;
    wire::Bytes frame;
  };
  struct Peer {
    std::unique_ptr<LinkClient> client;
    std::uint64_t number = 0;  ///< of the connection: what an older one says is no news
    bool released = false;     ///< what is held waits for room alone
    bool stuck = false;
    std::deque<Held> held;
    std::size_t held_bytes = 0;
  };
  void on_state(NodeId node, std::uint64_t number, LinkState state, const std::string& why);
  void on_message(NodeId node, const wire::Bytes& frame);
  void push(Peer& peer, const wire::FrameHeader& header, wire::Bytes frame);
  /// Ends a connection, which may take half a second, off the loop.
  void close(std::unique_ptr<LinkClient> client);

  EventLoop& loop_;
  Transport& transport_;
  const CurveKeyPair keys_;
  const std::size_t stuck_bytes_;
  const Hooks hooks_;
  std::uint64_t last_number_ = 0;
  std::map<NodeId, Peer> peers_;
  struct Closing {
    std::shared_ptr<std::atomic<bool>> done;
    std::thread thread;
  };
  std::vector<Closing> closing_;
};

}  // namespace troupe::node
