/// Layouts of records that older versions wrote, and what they are now.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/wire/cluster.hpp"

namespace troupe::store {

/// Up to version 4: there were no placement groups.
struct ActorDemand4 {
  std::int64_t cpu_e4 = 0;
  bool isolated = false;
  NodeId affinity{};
  std::int64_t gpu_e4 = 0;
};
/// Versions 1 and 2: actors had one life.
struct ActorSpec2 {
  JobId job{};
  std::string type;
  std::string name;
  std::string payload;
  ActorDemand4 demand;
};
struct ActorRecord2 {
  ActorId actor{};
  ActorSpec2 spec;
  cluster::Requester requester;
  NodeId node{};
  ProcessId process{};
  cluster::ActorState state = cluster::ActorState::kStarting;
  std::vector<std::uint32_t> gpus{};
};
/// Versions 3 and 4.
struct ActorSpec4 {
  JobId job{};
  std::string type;
  std::string name;
  std::string payload;
  ActorDemand4 demand;
  std::int32_t max_restarts = 0;
  std::int32_t max_task_retries = 0;
};
struct ActorRecord4 {
  ActorId actor{};
  ActorSpec4 spec;
  cluster::Requester requester;
  NodeId node{};
  ProcessId process{};
  cluster::ActorState state = cluster::ActorState::kStarting;
  std::vector<std::uint32_t> gpus{};
  std::uint32_t incarnation = 1;
  std::int32_t restarts = 0;
};
/// Versions 2 and 3: a submission brought nothing along.
struct SubmissionSpec3 {
  std::string id;
  std::string name;
  std::vector<std::string> program;
  std::vector<std::string> environment;
  std::string folder;
  std::int64_t cpu_e4 = 0;
  std::int64_t gpu_e4 = 0;
  std::int32_t retries = 0;
};
struct SubmissionRecord3 {
  SubmissionSpec3 spec;
  cluster::SubmissionState state = cluster::SubmissionState::kQueued;
  std::uint64_t number = 0;
  std::int32_t attempt = 0;
  NodeId node{};
  std::string node_name;
  std::vector<std::uint32_t> gpus{};
  std::int64_t submitted_ms = 0;
  std::int64_t started_ms = 0;
  std::int64_t ended_ms = 0;
  std::int32_t exit_code = -1;
  std::string message;
};
/// Up to version 5: a job was nobody's, a submission was in no queue, and a group held its room.
struct JobRecord5 {
  std::string name;
  std::uint32_t incarnation = 0;
  JobId job{};
  ProcessAddress driver;
  std::uint64_t request = 0;
  bool ended = false;
};
struct SubmissionSpec5 {
  std::string id;
  std::string name;
  std::vector<std::string> program;
  std::vector<std::string> environment;
  std::string folder;
  std::int64_t cpu_e4 = 0;
  std::int64_t gpu_e4 = 0;
  std::int32_t retries = 0;
  std::string package{};
  std::string executable{};
  std::int32_t priority = 0;
};
struct SubmissionRecord5 {
  SubmissionSpec5 spec;
  cluster::SubmissionState state = cluster::SubmissionState::kQueued;
  std::uint64_t number = 0;
  std::int32_t attempt = 0;
  NodeId node{};
  std::string node_name;
  std::vector<std::uint32_t> gpus{};
  std::int64_t submitted_ms = 0;
  std::int64_t started_ms = 0;
  std::int64_t ended_ms = 0;
  std::int32_t exit_code = -1;
  std::string message;
};
struct GroupSpec5 {
  JobId job{};
  std::string name;
  PlacementStrategy strategy = PlacementStrategy::kPack;
  std::vector<cluster::BundleDemand> bundles;
};
struct GroupRecord5 {
  GroupId group{};
  GroupSpec5 spec;
  cluster::Requester requester;
  cluster::GroupState state = cluster::GroupState::kWaiting;
  std::uint32_t generation = 0;
  std::vector<cluster::PlacedBundle> placed{};
};
using Record2 = std::variant<cluster::NodeRecord, JobRecord5, ActorRecord2, SubmissionRecord3>;
using Record3 = std::variant<cluster::NodeRecord, JobRecord5, ActorRecord4, SubmissionRecord3>;
using Record4 = std::variant<cluster::NodeRecord, JobRecord5, ActorRecord4, SubmissionRecord5>;
using Record5 =
    std::variant<cluster::NodeRecord, JobRecord5, cluster::ActorRecord, SubmissionRecord5, GroupRecord5>;

/// What has kept its layout.
template <class R>
cluster::Record converted(R&& record) {
  return std::forward<R>(record);
}
inline cluster::ActorDemand demand_of(const ActorDemand4& old) {
  return {old.cpu_e4, old.isolated, old.affinity, old.gpu_e4};
}
inline cluster::Record converted(ActorRecord4&& old) {
  ActorSpec4& spec = old.spec;
  return cluster::ActorRecord{old.actor,
                              {spec.job, std::move(spec.type), std::move(spec.name), std::move(spec.payload),
                               demand_of(spec.demand), spec.max_restarts, spec.max_task_retries},
                              old.requester,
                              old.node,
                              old.process,
                              old.state,
                              std::move(old.gpus),
                              old.incarnation,
                              old.restarts};
}
inline cluster::Record converted(ActorRecord2&& old) {
  ActorSpec2& spec = old.spec;
  return cluster::ActorRecord{
      old.actor,
      {spec.job, std::move(spec.type), std::move(spec.name), std::move(spec.payload), demand_of(spec.demand)},
      old.requester,
      old.node,
      old.process,
      old.state,
      std::move(old.gpus)};
}
inline cluster::Record converted(SubmissionRecord3&& old) {
  SubmissionSpec3& spec = old.spec;
  return cluster::SubmissionRecord{
      {std::move(spec.id), std::move(spec.name), std::move(spec.program), std::move(spec.environment),
       std::move(spec.folder), spec.cpu_e4, spec.gpu_e4, spec.retries},
      old.state,
      old.number,
      old.attempt,
      old.node,
      std::move(old.node_name),
      std::move(old.gpus),
      old.submitted_ms,
      old.started_ms,
      old.ended_ms,
      old.exit_code,
      std::move(old.message)};
}

inline cluster::Record converted(JobRecord5&& old) {
  return cluster::JobRecord{std::move(old.name), old.incarnation, old.job,
                            old.driver,          old.request,     old.ended};
}
inline cluster::Record converted(SubmissionRecord5&& old) {
  SubmissionSpec5& spec = old.spec;
  return cluster::SubmissionRecord{
      {std::move(spec.id), std::move(spec.name), std::move(spec.program), std::move(spec.environment),
       std::move(spec.folder), spec.cpu_e4, spec.gpu_e4, spec.retries, std::move(spec.package),
       std::move(spec.executable), spec.priority},
      old.state,
      old.number,
      old.attempt,
      old.node,
      std::move(old.node_name),
      std::move(old.gpus),
      old.submitted_ms,
      old.started_ms,
      old.ended_ms,
      old.exit_code,
      std::move(old.message)};
}
inline cluster::Record converted(GroupRecord5&& old) {
  return cluster::GroupRecord{
      old.group,
      {old.spec.job, std::move(old.spec.name), old.spec.strategy, std::move(old.spec.bundles)},
      old.requester,
      old.state,
      old.generation,
      std::move(old.placed)};
}

}  // namespace troupe::store
