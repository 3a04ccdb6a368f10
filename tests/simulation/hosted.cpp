#include "tests/simulation/hosted.hpp"

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

Hosted::Hosted(Cluster& in, Node& on, ProcessId as, std::string process_name, int on_host)
    : Process(std::move(process_name), on_host), cluster(in), node(&on), process(as) {}

ProcessAddress Hosted::address() const {
  return {node->info.id, process};
}

void Hosted::start_pulse() {
  cluster.world.every(*this, seconds(1), "~pulse", [this] { to_node("~pulse", wire::Pulse{}); });
}

// Frames.

void Hosted::send(Frame frame) {
  frame.header.from = address();
  frame.header.job = job;
  auto shared = std::make_shared<const Frame>(std::move(frame));
  cluster.world.send(*this, *node, shared->label,
                     [n = node, id = process, shared] { n->on_local_frame(id, shared); });
}

void Hosted::to_node(const char* label, wire::Control message) {
  Frame frame;
  frame.header.kind = wire::FrameKind::kControl;
  frame.header.to = {node->info.id, {}};
  frame.label = label;
  frame.control = std::move(message);
  send(std::move(frame));
}

void Hosted::ask(const char* label, std::uint64_t request, wire::Control message,
                 std::function<void(const wire::Answer&)> done) {
  asked[request] = {label, cluster.world.now(), false, {}, nullptr, std::move(done)};
  to_node(label, std::move(message));
}

void Hosted::tell(const ProcessAddress& to, const char* label, Run run) {
  Frame frame;
  frame.header.kind = wire::FrameKind::kCall;
  frame.header.flags = wire::kFlagOneWay;
  frame.header.to = to;
  frame.label = label;
  frame.run = std::move(run);
  send(std::move(frame));
}

void Hosted::call(const ProcessAddress& to, const char* label, Run run, Done done) {
  Frame frame;
  frame.header.kind = wire::FrameKind::kCall;
  frame.header.id = ++call_ids_;
  frame.header.to = to;
  frame.label = label;
  frame.run = std::move(run);
  calls[frame.header.id] = {label, cluster.world.now(), false, to, std::move(done), nullptr};
  send(std::move(frame));
}

void Hosted::monitor(const ActorAddress& actor, std::function<void(const std::string&)> down) {
  Frame frame;
  frame.header.kind = wire::FrameKind::kMonitor;
  frame.header.id = ++call_ids_;
  frame.header.to = actor.home();
  frame.label = "monitor";
  frame.run = [](Hosted&, const FramePtr&) {};  // answered when the process ends: by who carries its frames
  const auto ended = [this, actor, down = std::move(down)](const Frame& reply) {
    if (reply.error.code != ErrorCode::kUnavailable) return down(reply.error.why);
    cluster.world.after(*this, milliseconds(200), "monitor again",
                        [this, actor, down] { monitor(actor, down); });
  };
  calls[frame.header.id] = {"monitor", cluster.world.now(), true, actor.home(), ended, nullptr};
  send(std::move(frame));
}

void Hosted::reply(const Frame& call, std::any value) {
  Frame frame;
  frame.header.kind = wire::FrameKind::kReply;
  frame.header.id = call.header.id;
  frame.header.to = call.header.from;
  frame.label = "reply";
  frame.value = std::move(value);
  send(std::move(frame));
}

void Hosted::on_frame(const FramePtr& frame) {
  if (frame->header.kind != wire::FrameKind::kReply) return frame->run(*this, frame);
  const auto found = calls.extract(frame->header.id);
  if (!found.empty()) found.mapped().done(*frame);
}

void Hosted::fail_calls(const std::function<bool(const ProcessAddress&)>& which, const ErrorInfo& error) {
  std::vector<std::uint64_t> failed;
  for (const auto& [number, open] : calls) {
    if (which(open.to)) failed.push_back(number);
  }
  Frame reply;
  reply.header.flags = wire::kFlagError;
  reply.error = error;
  for (const std::uint64_t number : failed) {
    if (const auto found = calls.extract(number); !found.empty()) found.mapped().done(reply);
  }
}

void Hosted::on_control(const wire::Control& message) {
  if (const auto* answer = std::get_if<wire::Answer>(&message)) {
    const auto found = asked.extract(answer->request);
    if (!found.empty()) found.mapped().answered(*answer);
  } else if (const auto* down = std::get_if<wire::ProcessDown>(&message)) {
    fail_calls([at = down->process](const ProcessAddress& p) { return p == at; },
               {ErrorCode::kActorDied, "the actor is gone", down->reason, ""});
  } else if (const auto* dead = std::get_if<wire::NodeDown>(&message)) {
    fail_calls([at = dead->node](const ProcessAddress& p) { return p.node == at; },
               {ErrorCode::kActorDied, "the actor is gone", dead->reason, ""});
  } else if (const auto* lost = std::get_if<wire::NodeLost>(&message)) {
    fail_calls([at = lost->node](const ProcessAddress& p) { return p.node == at; },
               {ErrorCode::kUnavailable, "the link broke", lost->reason, ""});
  } else if (std::get_if<wire::Leave>(&message) != nullptr) {
    cluster.world.kill(*this, "told to leave");
  }
}

}  // namespace troupe::sim
