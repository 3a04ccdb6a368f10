// Memory, custom resources and labels in the head's books: actors, groups, submitted jobs and a head that
// starts again.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

OtherResources tpus(double count) {
  return other_resources(0, {{"tpu", count}}, {});
}

struct Books : Script {
  void node_with(std::uint64_t id, int cpus, OtherResources other, std::vector<LiveActor> actors = {}) {
    NodeInfo info{NodeId{id}, "n" + std::to_string(id), "", "", cpus * kCpu, false};
    info.other = std::move(other);
    on(NodeJoined{info, std::move(actors), {}, {}});
  }
  void want(JobId job, std::uint64_t request, OtherResources other, GroupId group = {}) {
    on(SpawnRequested{{kDriver, request},
                      {job, "T", "", "arguments", {0, true, {}, 0, group, -1, std::move(other)}}});
  }
  void submit(const std::string& id, OtherResources other) {
    SubmissionSpec spec;
    spec.id = id;
    spec.program = {"true"};
    spec.other = std::move(other);
    REQUIRE_FALSE(head->submission_refused(spec));
    on(SubmissionRequested{spec});
  }
  const SubmissionRecord& submission(const std::string& id) const { return *head->submissions().find(id); }
};

}  // namespace

TEST_CASE(
    "a custom resource is held by one actor after the other, and is known after a restart of the head") {
  Books s;
  s.node_with(1, 4, {});
  s.node_with(2, 4, tpus(1));
  s.gateway();
  const JobId job = s.job().job;
  s.want(job, 10, tpus(1));
  const StartActor first = *s.get<StartActor>();
  CHECK(first.node == NodeId{2});
  s.on(ActorStarted{first.node, first.actor, ProcessId{9}});
  s.want(job, 11, tpus(1));
  CHECK(s.get<StartActor>() == nullptr);
  CHECK(s.the<SpawnWaits>().reason == "no node has 1 tpu free: n2 has 0 of 1 tpu");

  s.restart();
  s.node_with(2, 4, tpus(1), {{first.actor, ProcessId{9}}});
  CHECK(s.head->nodes().at(NodeId{2}).other_used == tpus(1).amounts);
  s.node_with(1, 4, {});
  s.gateway();
  s.want(job, 11, tpus(1));
  CHECK(s.get<StartActor>() == nullptr);
  s.on(ActorDown{first.node, first.actor, "it ended"});
  CHECK(s.the<StartActor>().node == NodeId{2});
  s.want(job, 12, other_resources(0, {{"fpga", 1}}, {}));
  CHECK(s.the<SpawnAnswered>().reason == "no node has resource fpga");
}

TEST_CASE("a resource whose only node died is waited for") {
  Books s;
  s.node_with(1, 4, {});
  s.node_with(2, 4, tpus(1));
  s.gateway();
  const JobId job = s.job().job;
  s.on(NodeLeft{NodeId{2}, "it went"});
  s.want(job, 10, tpus(1));
  CHECK(s.the<SpawnWaits>().reason.find("no node has 1 tpu free") == 0);
  s.want(job, 11, tpus(2));  // that node never had
  CHECK(s.the<SpawnAnswered>().reason == "no node has resource tpu");
  s.node_with(3, 4, tpus(1));
  CHECK(s.the<StartActor>().node == NodeId{3});
}

TEST_CASE("a bundle holds a resource, its actors take of it, and it is given back with the group") {
  Books s;
  s.node_with(1, 4, other_resources(1 << 30, {{"tpu", 2}}, {{"zone", "a"}}));
  s.node_with(2, 4, tpus(2));
  s.gateway();
  const JobId job = s.job().job;
  GroupSpec spec;
  spec.bundles = {{kCpu, 0, other_resources(1 << 20, {{"tpu", 2}}, {{"zone", "a"}})}};
  s.on(GroupRequested{{kDriver, 5}, job, GroupVerb::kMake, {}, spec});
  const GroupRecord group = s.the<GroupAnswered>().status.record;
  CHECK(group.placed[0].node == NodeId{1});
  CHECK(s.head->nodes().at(NodeId{1}).other_used == spec.bundles[0].other.amounts);
  s.want(job, 10, tpus(1.5), group.group);
  const StartActor first = *s.get<StartActor>();
  CHECK(first.node == NodeId{1});
  s.want(job, 11, tpus(1), group.group);
  CHECK(s.the<SpawnWaits>().reason.find("0.5 of 2 tpu") != std::string::npos);
  s.want(job, 12, tpus(3), group.group);
  CHECK(s.the<SpawnAnswered>().error.why.find("has 3 tpu at all") != std::string::npos);
  s.want(job, 13, other_resources(0, {}, {{"zone", "a"}}), group.group);
  CHECK(s.the<SpawnAnswered>().error.why.find("it asks for labels in placement group") == 0);
  s.on(ActorDown{first.node, first.actor, "it ended"});
  REQUIRE(s.get<StartActor>() != nullptr);  // who waited for the bundle
  const StartActor second = *s.get<StartActor>();
  s.on(GroupRequested{{kDriver, 6}, job, GroupVerb::kRemove, group.group, {}});
  s.on(ActorDown{second.node, second.actor, "it ended"});
  CHECK(s.head->nodes().at(NodeId{1}).other_used.empty());
}

TEST_CASE("a job waits for a resource that no node has, and says so; one that asks for another goes past") {
  Books s;
  s.node_with(1, 4, other_resources(1 << 30, {{"tpu", 1}}, {{"zone", "a"}}));
  s.submit("first", tpus(1));
  s.on(DriverStarted{NodeId{1}, "first", 1});
  CHECK(s.submission("first").state == SubmissionState::kRunning);
  s.submit("second", tpus(1));
  s.submit("never", other_resources(0, {{"fpga", 1}}, {}));
  s.submit("elsewhere", other_resources(0, {}, {{"zone", "b"}}));
  s.submit("small", other_resources(1 << 20, {}, {{"zone", "a"}}));
  CHECK(s.submission("second").state == SubmissionState::kQueued);
  CHECK(s.head->why(s.submission("second")) == "no node has 1 tpu free: n1 has 0 of 1 tpu");
  CHECK(s.head->why(s.submission("never")) == "no node has resource fpga; it waits for a node that has it");
  CHECK(s.head->why(s.submission("elsewhere")) ==
        "no node has the label zone=b; it waits for a node that has it");
  CHECK(s.submission("small").state == SubmissionState::kStarting);
  const WaitReport report = s.head->explain(s.submission("second"));
  REQUIRE(report.resources.size() == 1);
  CHECK(report.resources[0].name == "tpu");
  CHECK(report.nodes.at(0).lacks == std::vector<std::string>{"1 tpu: 0 tpu is free"});
  s.on(DriverEnded{NodeId{1}, "first", 1, {.ran = true, .exit_code = 0}});
  CHECK(s.submission("second").state == SubmissionState::kStarting);
  s.node_with(2, 4, other_resources(0, {{"fpga", 1}}, {{"zone", "b"}}));
  CHECK(s.submission("never").node == NodeId{2});
  CHECK(s.submission("elsewhere").node == NodeId{2});
}
