#include "collectives/flight/recorded_group.hpp"

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

using flight::FlightRecorder;
using flight::What;

std::string text_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something that is no std::exception";
  }
}

/// Whether a launch threw this for what it was given, and not for how the group is.
bool is_callers_fault(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kBadConfig || error.code() == ErrorCode::kBadInput ||
           error.code() == ErrorCode::kLimit;
  } catch (...) {
    return true;
  }
}

class RecordedWork final : public Work {
 public:
  RecordedWork(std::shared_ptr<FlightRecorder> recorder, std::uint64_t number, std::shared_ptr<Work> inner)
      : recorder_(std::move(recorder)), number_(number), inner_(std::move(inner)) {}

  void wait() override {
    settle([&] {
      inner_->wait();
      return true;
    });
  }
  bool wait_for(Duration limit) override {
    return settle([&] { return inner_->wait_for(limit); });
  }
  bool is_completed() override {
    const bool over = inner_->is_completed();
    if (over && !settled_) note(inner_->exception());
    return over;
  }
  std::exception_ptr exception() override {
    auto thrown = inner_->exception();
    if (thrown && !settled_) note(thrown);
    return thrown;
  }
  std::optional<Duration> duration() override { return inner_->duration(); }

 private:
  template <class Step>
  bool settle(Step step) {
    if (settled_) return step();
    recorder_->waiting(number_);
    try {
      if (!step()) return false;
    } catch (...) {
      note(std::current_exception());
      throw;
    }
    note(nullptr);
    return true;
  }
  void note(const std::exception_ptr& thrown) {
    settled_ = true;
    if (thrown) {
      recorder_->failed(number_, text_of(thrown));
    } else {
      recorder_->completed(number_, inner_->duration());
    }
  }

  const std::shared_ptr<FlightRecorder> recorder_;
  const std::uint64_t number_;
  const std::shared_ptr<Work> inner_;
  bool settled_ = false;
};

class RecordedGroup final : public ProcessGroup {
 public:
  RecordedGroup(std::shared_ptr<ProcessGroup> inner, flight::FlightOptions options)
      : inner_(std::move(inner)), recorder_(std::make_shared<FlightRecorder>(*inner_, std::move(options))) {}

  const std::shared_ptr<FlightRecorder>& recorder() const { return recorder_; }

  std::string_view backend() const override { return inner_->backend(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Generation generation() const override { return inner_->generation(); }
  LeafInterval leaves() const override { return inner_->leaves(); }
  std::string abort_reason() const override { return inner_->abort_reason(); }
  TreeBuffer allocate_tree(std::size_t count, DType dtype) override {
    return inner_->allocate_tree(count, dtype);
  }
  Buffer allocate(std::size_t count, DType dtype) override { return inner_->allocate(count, dtype); }

  void abort(const std::string& reason) override {
    const bool first = inner_->abort_reason().empty();
    inner_->abort(reason);  // the others wait for this, and for no dump
    recorder_->aborted(first ? "this rank aborted the group: " + reason
                             : "this rank left the group, which was aborted: " + inner_->abort_reason());
  }

  std::shared_ptr<Work> all_reduce_tree(const TreeBuffer& buffer, Reduction how) override {
    return record({OpKind::kAllReduceTree, how.op, how.exact, buffer.dtype, buffer.index, 0, buffer.count},
                  [&] { return inner_->all_reduce_tree(buffer, how); });
  }
  std::shared_ptr<Work> all_reduce(const Buffer& buffer, Reduction how) override {
    return record(what(OpKind::kAllReduce, buffer, how), [&] { return inner_->all_reduce(buffer, how); });
  }
  std::shared_ptr<Work> reduce(const Buffer& buffer, Reduction how, int root) override {
    return record(what(OpKind::kReduce, buffer, how, root),
                  [&] { return inner_->reduce(buffer, how, root); });
  }
  std::shared_ptr<Work> broadcast(const Buffer& buffer, int root) override {
    return record(what(OpKind::kBroadcast, buffer, {}, root),
                  [&] { return inner_->broadcast(buffer, root); });
  }
  std::shared_ptr<Work> gather(const Buffer& input, const Buffer& output, int root) override {
    return record(what(OpKind::kGather, input, {}, root),
                  [&] { return inner_->gather(input, output, root); });
  }
  std::shared_ptr<Work> scatter(const Buffer& input, const Buffer& output, int root) override {
    return record(what(OpKind::kScatter, output, {}, root),
                  [&] { return inner_->scatter(input, output, root); });
  }
  std::shared_ptr<Work> all_gather(const Buffer& input, const Buffer& output) override {
    return record(what(OpKind::kAllGather, input), [&] { return inner_->all_gather(input, output); });
  }
  std::shared_ptr<Work> reduce_scatter(const Buffer& input, const Buffer& output, Reduction how) override {
    return record(what(OpKind::kReduceScatter, output, how),
                  [&] { return inner_->reduce_scatter(input, output, how); });
  }
  std::shared_ptr<Work> all_to_all(const Buffer& input, const Buffer& output) override {
    return record(what(OpKind::kAllToAll, input), [&] { return inner_->all_to_all(input, output); });
  }
  std::shared_ptr<Work> barrier() override {
    return record({}, [&] { return inner_->barrier(); });
  }
  std::shared_ptr<Work> send(const Buffer& buffer, int to, std::uint32_t tag) override {
    return record(what(OpKind::kSend, buffer, {}, to, tag), [&] { return inner_->send(buffer, to, tag); });
  }
  std::shared_ptr<Work> recv(const Buffer& buffer, int from, std::uint32_t tag) override {
    return record(what(OpKind::kRecv, buffer, {}, from, tag),
                  [&] { return inner_->recv(buffer, from, tag); });
  }

 private:
  static What what(OpKind call, const Buffer& buffer, Reduction how = {}, int at = 0, std::uint32_t tag = 0) {
    return {call, how.op, how.exact, buffer.dtype, at, tag, buffer.count};
  }
  /// Remembered before the launch, which may wait: a dump then shows what the rank is at.
  template <class Launch>
  std::shared_ptr<Work> record(const What& call, Launch launch) {
    const std::uint64_t number = recorder_->launch(call);
    try {
      return std::make_shared<RecordedWork>(recorder_, number, launch());
    } catch (...) {
      const auto thrown = std::current_exception();
      recorder_->refused(number, text_of(thrown), !is_callers_fault(thrown));
      throw;
    }
  }

  const std::shared_ptr<ProcessGroup> inner_;
  const std::shared_ptr<FlightRecorder> recorder_;
};

}  // namespace

std::shared_ptr<ProcessGroup> recorded(std::shared_ptr<ProcessGroup> group, flight::FlightOptions options) {
  TROUPE_ASSERT(group != nullptr, "a recorder has a group to record");
  return std::make_shared<RecordedGroup>(std::move(group), std::move(options));
}

std::shared_ptr<flight::FlightRecorder> flight_recorder_of(const ProcessGroup& group) {
  const auto* found = dynamic_cast<const RecordedGroup*>(&group);
  return found == nullptr ? nullptr : found->recorder();
}

}  // namespace troupe::collectives
