#include "actors/train/batches/loader.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "actors/train/driver/train_driver.hpp"
#include "actors/train/floor.hpp"
#include "runtime/core/process_title.hpp"

namespace troupe::train {
namespace {

constexpr Duration kHeartbeat = std::chrono::seconds(1);
/// A test sample needs no gradients, so more of them fit than in a training batch.
constexpr std::int64_t kTestPiece = 250;
constexpr std::uint64_t kTestPieceBytes = std::uint64_t{16} << 20;

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

}  // namespace

/// While one lives the loader computes `what`; then it waits for the next request.
class Loader::Computing {
 public:
  Computing(Loader& loader, const std::string& what) : loader_(loader) {
    loader_.computes(what);
    loader_.start_heartbeat();  // a trainer's first request may overtake the driver's, and never end
  }
  ~Computing() { loader_.computes({}); }
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;

 private:
  Loader& loader_;
};

Loader::Loader(RunSettings settings, ActorHandle<TrainDriver> driver)
    : child_came_back_(SharedMemory::create("forks", 1, true).value()),
      settings_(std::move(settings)),
      driver_(driver) {
  name_process_work(train_floor().job_name(settings_));
  make_datasets();
  learn_sizes();
}

void Loader::employ(const RunSettings& settings, ActorHandle<TrainDriver> driver) {
  end_heartbeat();
  const bool same =
      train_ != nullptr && settings_.exact == settings.exact && train_floor().same_data(settings_, settings);
  settings_ = settings;
  name_process_work(train_floor().job_name(settings_));
  driver_ = driver;
  progress_ = {};
  if (!same) make_datasets();
  learn_sizes();
}

void Loader::make_datasets() {
  train_ = test_ = validation_ = nullptr;  // their memory is the next ones'
  TrainFloor& floor = train_floor();
  numerics_ = floor.set_up_loader(settings_);
  train_ = floor.make_dataset(settings_, data::Split::kTrain);
  test_ = floor.make_dataset(settings_, data::Split::kTest);
  validation_ = floor.make_dataset(settings_, data::Split::kValidation);
}

void Loader::learn_sizes() {
  info_ = {};
  info_.train_size = train_->size();
  info_.test_size = test_->size();
  if (validation_ != nullptr) info_.validation_size = validation_->size();
  info_.most_evaluated = settings_.evaluation_samples;
  check_forks();
  for (const auto& [set, size] :
       {std::pair("test", info_.test_size), std::pair("validation", info_.validation_size)}) {
    if (size >= 0) continue;
    throw BadConfig(std::string("cannot evaluate the ") + set + " set",
                    "its size() is " + std::to_string(size), "return 0 where there is none");
  }
  info_.sampling = train_floor().make_sampling(settings_, *train_);
  info_.sampling_hash = data::sampling_hash(info_.sampling);
  sampler_ = std::make_unique<data::LeafSampler>(sampler_options(settings_, info_));
  info_.steps_per_epoch = sampler_->steps_per_epoch();
}

DataInfo Loader::describe() {
  const Computing computing(*this, "the first batch");
  const auto first = sampler_->indices(0, 0, 0);
  info_.batch_bytes =
      data::BatchBuilder(*train_, first, random_key(settings_, data::Split::kTrain, 0), hooks()).total();
  // By the bytes of a sample, so that a piece of large images fits, too.
  const auto by_bytes = static_cast<std::int64_t>(kTestPieceBytes * first.size() / info_.batch_bytes);
  info_.test_piece = std::max(settings_.micro_batch, std::min(kTestPiece, by_bytes));
  for (const data::Split split : {data::Split::kTest, data::Split::kValidation}) {
    const std::int64_t size = split == data::Split::kTest ? info_.test_size : info_.validation_size;
    if (size == 0) continue;
    const auto piece = range(0, std::min(size, info_.test_piece));
    const data::BatchBuilder first_piece(dataset(split), piece, random_key(settings_, split, 0), hooks());
    info_.test_batch_bytes = std::max<std::uint64_t>(info_.test_batch_bytes, first_piece.total());
  }
  return info_;
}

LoaderHello Loader::hello() const {
  return {::getpid(), numerics_};
}

void Loader::raise_signal(int number) {
  ::kill(::getpid(), number);
}

Loader::~Loader() {
  end_heartbeat();
}

void Loader::end_heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  if (heartbeat_.joinable()) heartbeat_.join();
  heartbeat_ = {};
  ending_ = false;
}

void Loader::start_heartbeat() {
  if (heartbeat_.joinable()) return;
  heartbeat_ = Thread::quiet([this, me = this_actor().address().actor] {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      const Progress now = progress_;
      lock.unlock();
      driver_.tell<&TrainDriver::loader_lives>(me, now);  // may be held back
      lock.lock();
      if (!ending_) ends_.wait_for(lock, kHeartbeat);
    }
  });
}

void Loader::computes(const std::string& what) {
  const std::lock_guard lock(mutex_);
  progress_ = {progress_.count + 1, !what.empty(), what};
}

data::SampleHooks Loader::hooks() {
  return {.before =
              [this] {
                const std::lock_guard lock(mutex_);
                ++progress_.count;
              },
          .seed = [](std::uint64_t seed) { train_floor().seed_generators(seed); },
          .after = [this] { check_forks(); }};
}

/// A child that comes back from the dataset's code would answer in its parent's name, with half of its
/// threads' locks held: it ends, and the parent says why.
void Loader::check_forks() const {
  const std::atomic_ref<std::byte> came_back(*child_came_back_.data());
  if (fork_guard_.is_in_child()) {
    came_back.store(std::byte{1});
    ::_exit(1);
  }
  if (came_back.load(std::memory_order_relaxed) == std::byte{0}) return;
  throw BadConfig(
      train_floor().job_name(settings_) + "::dataset forked a process that came back from its code",
      "such a child has its parent's memory and links, and none of its threads",
      "let it end in its own code, with _exit(), or run a program in it");
}

const data::Dataset& Loader::dataset(data::Split split) const {
  if (split == data::Split::kTrain) return *train_;
  if (split == data::Split::kTest) return *test_;
  if (validation_ == nullptr)
    throw_error({ErrorCode::kBadInput, "cannot construct a batch", "the job has no validation set", ""});
  return *validation_;
}

/// Lets go of what it does not want any more.
Loader::Client& Loader::client(const BatchAsk& ask) {
  const ActorId trainer = ask.trainer.actor;
  if (!clients_.contains(trainer)) {
    const Session session = this_actor().session();
    session.monitor(ask.trainer, [this, session, trainer](const std::string&) {
      // The dead cannot take its names back, and the node keeps what a loader holds.
      for (const auto& [name, memory] : clients_[trainer].regions) session.drop_region(name);
      clients_.erase(trainer);
    });
  }
  Client& client = clients_[trainer];
  const auto lacks = [](const auto& wanted, const auto& one) {
    return std::find(wanted.begin(), wanted.end(), one) == wanted.end();
  };
  std::erase_if(client.regions, [&](const auto& region) { return lacks(ask.regions, region.first); });
  std::erase_if(client.rests, [&](const auto& rest) { return lacks(ask.under_way, rest.first); });
  return client;
}

std::span<std::byte> Loader::slot(Client& client, const BatchAsk& ask) {
  auto at = client.regions.find(ask.region);
  if (at == client.regions.end())
    at = client.regions
             .emplace(ask.region,
                      this_actor().session().open_region(ask.region, ask.region_bytes, "loader", false))
             .first;
  const auto& memory = at->second;
  if (ask.offset > memory.size() || ask.bytes > memory.size() - ask.offset) {
    throw_error(
        {ErrorCode::kLimit, "cannot construct a batch", "its slot lies outside of the trainer's region", ""});
  }
  return {memory.data() + ask.offset, ask.bytes};
}

std::vector<std::int64_t> Loader::indices_of(const BatchAsk& ask) {
  const std::int64_t size = dataset(ask.split).size();
  if (size != ask.samples) {
    throw_error({ErrorCode::kBadInput, "the " + std::string(data::split_name(ask.split)) + " set has changed",
                 "it has " + std::to_string(size) + " samples now, and had " + std::to_string(ask.samples) +
                     " when the job began",
                 "leave the data as it is while a job runs"});
  }
  if (ask.split == data::Split::kTrain)
    return sampler_->indices(ask.epoch, static_cast<std::int64_t>(ask.step), static_cast<int>(ask.leaf));
  if (ask.begin < 0 || ask.begin >= ask.end || ask.end > size)
    throw_error({ErrorCode::kBadInput, "cannot construct a batch", "no such samples", ""});
  return range(ask.begin, ask.end);
}

BatchGiven Loader::load(const BatchAsk& ask) {
  check_forks();
  const bool train = ask.split == data::Split::kTrain;
  const Computing computing(*this, train ? "the batch of epoch " + std::to_string(ask.epoch + 1) + ", step " +
                                               std::to_string(ask.step + 1) + ", leaf " +
                                               std::to_string(ask.leaf)
                                         : "piece " + std::to_string(ask.step) + " of the evaluation");
  const auto indices = indices_of(ask);
  const data::BatchKey key{ask.epoch, ask.step, ask.leaf};
  data::BatchBuilder batch(dataset(ask.split), indices, random_key(settings_, ask.split, ask.epoch), hooks());
  if (batch.total() > ask.bytes) return {{}, 0, batch.total()};
  Client& client = this->client(ask);
  if (ask.trainer.node != this_actor().address().node) return send(client, ask, batch, key);
  batch.write(slot(client, ask), key);
  return {};
}

/// Into a message, or the first of several.
BatchGiven Loader::send(Client& client, const BatchAsk& ask, data::BatchBuilder& batch,
                        const data::BatchKey& key) {
  std::vector<Line> whole(batch.total() / sizeof(Line));
  const auto bytes = std::as_writable_bytes(std::span(whole));
  batch.write(bytes, key);
  const auto first = bytes.first(std::min(bytes.size(), train_floor().batch_piece()));
  BatchGiven given{{first.begin(), first.end()}, bytes.size(), 0};
  if (first.size() < bytes.size()) client.rests.insert_or_assign(ask.attempt, std::move(whole));
  return given;
}

wire::Bytes Loader::rest(ActorId trainer, std::uint64_t attempt, std::uint64_t offset) {
  auto& rests = clients_[trainer].rests;
  const auto at = rests.find(attempt);
  const auto whole = at == rests.end() ? std::span<const std::byte>() : std::as_bytes(std::span(at->second));
  if (offset >= whole.size())
    throw_error({ErrorCode::kUnavailable, "the rest of a batch is not there", "it is done with", ""});
  const auto left = whole.subspan(offset);
  const auto piece = left.first(std::min(left.size(), train_floor().batch_piece()));
  wire::Bytes bytes(piece.begin(), piece.end());
  if (piece.size() == left.size()) rests.erase(at);
  return bytes;
}

}  // namespace troupe::train
