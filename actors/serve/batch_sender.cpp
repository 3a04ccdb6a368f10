#include "actors/serve/batch_sender.hpp"

#include <utility>

namespace troupe::serve {

void BatchSender::add(ReplicaId id, const ActorHandle<Replica>& replica, VersionId version) {
  seats_[id] = {replica, version};
}

bool BatchSender::is_timed(ReplicaId id) const {
  const auto seat = seats_.find(id);
  return seat != seats_.end() && seat->second.clock.is_known();
}

void BatchSender::ask_clock(ReplicaId id, std::function<void(const Result<void>&)> answered) {
  const Instant asked = clock_.now();  // before it is sent: the replica may answer at once
  seats_.at(id).handle.call<&Replica::clock>().then(
      [this, life = owner_.life(), id, asked,
       answered = std::move(answered)](const Result<std::int64_t>& theirs) {
        owner_.post([this, life, id, answered, theirs, asked, heard = clock_.now()] {
          const auto seat = seats_.find(id);
          if (seat == seats_.end()) return;
          if (!theirs) return answered(theirs.error());
          seat->second.clock.heard(asked, Instant(*theirs), heard);
          answered({});
        });
      });
}

void BatchSender::send(const SendBatch& batch) {
  const Seat& seat = seats_.at(batch.replica);
  const Instant sent = clock_.now();
  const BatchInput input = book_.batch_of(batch, seat.clock.offset(sent), me_);
  const auto done = [this, life = owner_.life(), batch, sent, version = seat.version,
                     rows = input.rows](Result<BatchOutput> output) {
    const auto shared = std::make_shared<Result<BatchOutput>>(std::move(output));  // work is copied
    owner_.post([this, life, batch, sent, version, rows, shared, heard = clock_.now()] {
      const auto there = seats_.find(batch.replica);
      if (there != seats_.end() && shared->ok())
        there->second.clock.heard(sent, Instant((*shared)->began_at), heard);
      answered(batch, version, rows, std::move(*shared));
    });
  };
  try {
    seat.handle.call<&Replica::predict>(input).then(done);
  } catch (const Error& error) {  // a large batch is an object, and there may be no room for one
    done(error.info());
  }
}

void BatchSender::answered(const SendBatch& sent, VersionId version, const std::vector<std::int64_t>& rows,
                           Result<BatchOutput> output) {
  if (!output && is_lost(output.error())) return owner_.lost(sent.replica, output.error());
  owner_.done(book_.take(sent, version, rows, std::move(output)));
  book_.forget_outputs();
}

}  // namespace troupe::serve
