/// The driver actor of a training run: DriverMachine's rules, carried out with spawn, call and monitor. It
/// runs in the driver program, holds no decision of its own and never blocks.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/report/events.hpp"
#include "actors/train/batches/loader.hpp"
#include "actors/train/driver/driver_types.hpp"
#include "actors/train/driver/first_loader.hpp"
#include "actors/train/driver/processors.hpp"
#include "actors/train/driver/run_result.hpp"
#include "actors/train/snapshot.hpp"
#include "actors/train/trainer/trainer.hpp"
#include "runtime/client/session.hpp"

namespace troupe::train {

class DriverMachine;

struct RunOptions {
  RunSettings settings;
  int trainers = 1;
  int min_trainers = 1;
  Deadlines deadlines;
  RestartPolicy restart;
  int ahead = DriverConfig().ahead;
  int loaders = 1;
  struct Evaluations {
    bool on = true;
    std::int64_t every = 0;  ///< steps, beside the epochs' ends
    bool told = false;       ///< what they come to, to trainers: schedules look at it
  } evaluations{};
  std::int64_t checkpoint_every = 0;  ///< steps; 0: at each epoch's end
  int keep_checkpoints = 3;
  struct TrainerRoom {  ///< that a trainer holds on its node, beside its GPUs
    double cpus = 0;
    std::int64_t memory = 0;
    std::map<std::string, double> resources{};
    std::map<std::string, std::string> labels{};  ///< of that node
  } trainer_room{};
  PlacementStrategy trainer_strategy = PlacementStrategy::kPack;
  StopEarly stop_early;
  bool hold = false;  ///< after each epoch
  std::string keep_best;
  Mode keep_best_mode = Mode::kAuto;
  std::vector<CheckpointInfo> resume;                  ///< all of the job's, oldest first
  std::optional<checkpoint::JobIdentity> resumed_job;  ///< that of the last of them
  int faults = 0;                                      ///< survived before this driver began
  std::int64_t not_finite = 0;                         ///< RunResult::not_finite before
  std::int64_t seen_steps = 0;                         ///< of which steps, from the job's first, that is
  double seconds = 0;                                  ///< that the job took before
  std::vector<ChaosStep> chaos;
  struct Embedded {  ///< of the embedded cluster: what kill-node and kill-head signal
    std::vector<int> node_pids;
    int head_pid = 0;
  } embedded{};
};

/// A piece of the state that a job ended with, or holds, and which state that is. A job that loses a hold may
/// come to another state of as many steps, by other trainers: pieces of both are no state.
struct FinalPiece {
  std::uint64_t state = 0;  ///< a number of the driver's
  int shards = 0;           ///< that the state is in; 0: it is whole
  wire::Bytes bytes;        ///< none: the file, or the shard, ended before
};

class TrainDriver {
 public:
  explicit TrainDriver(RunOptions options);
  /// Whoever waits for it hears that it died.
  ~TrainDriver();

  /// Runs the job; the answer comes when it is over. Fails with the reason when the job does.
  Future<RunResult> run();
  /// What happened since the last call; answers when there is something, and with nothing once the run is
  /// over.
  Future<std::vector<report::Event>> next_events();
  /// Ends the job after the current step, with a checkpoint where those are kept.
  void stop();
  /// The same, but a job that has not begun ends when it could run its first step.
  void pause();
  /// Where a job that holds after an epoch is, once it does: final_state() gives that state until go_on().
  /// Fails when the job is over.
  Future<JobPlace> held();
  /// Its trainers' fingerprint; empty: there was none yet.
  std::string numerics() const { return first_hello_ ? first_hello_->numerics : ""; }
  /// From a hold into the next epoch.
  void go_on();
  /// Ends the job at once, or what is left of one that is over: its trainers.
  void abandon(const std::string& reason);
  /// A piece of the state that the job ended with, or holds: of a safetensors file, or of a shard
  /// (write_shard). From a trainer that held it then, and from no other. Fails with Unavailable when none of
  /// them is left. See take_final_state.
  Future<FinalPiece> final_state(bool weights_only, int shard, std::uint64_t offset);
  /// What that state consists of, as its holders said.
  std::vector<PartHash> final_parts() const;
  /// Where the job ended. REQUIRES: it did, and did not fail.
  JobPlace place();

  /// Appends to the snapshot that the job begins from. Before run().
  void add_snapshot(const wire::Bytes& piece);
  /// Instead: it is in a file, and a donor may keep it. Before run().
  void begin_from(const StateFile& file, const StateDonor& donor);
  /// Trainers and loaders that are there are this job's from now on, before others start. Before run().
  void take_over(const Workers& workers);
  /// Ends the job, or what is left of one that is over, but for its trainers and loaders: these live on, for
  /// another driver.
  Workers release();
  /// A trainer keeps a copy of the state of a job that holds (held()), until it keeps the next one. Fails
  /// where none has that state.
  Future<StateDonor> keep_state();
  /// A copy of the weights as they are after a committed step, from when there is one. The job trains on.
  /// Fails with Unavailable when it is over.
  Future<WeightCopy> copy_weights();

  // From trainers and loaders.
  /// A piece of the snapshot; nothing behind its end.
  wire::Bytes snapshot(std::uint64_t offset);
  /// Who keeps the snapshot; nobody where that is known to be of no use.
  StateDonor state_donor() const;
  void donor_lost(const std::string& why);
  void report(const TrainerReport& report);
  void loader_lives(ActorId loader, const Progress& progress);
  /// What the job's code threw in a trainer that was at `place` ("step 3, leaf 1"), or, where that is none,
  /// in a loader. The job fails.
  void job_threw(ActorId trainer, const std::string& place, const ErrorInfo& error);

 private:
  struct TrainerSeat {
    ActorHandle<Trainer> handle;
    int number = 0;  ///< as people see it: "trainer 0"
    TrainerHello hello;
    int rank = -1;
  };
  /// One whose process starts.
  struct StartedTrainer {
    int number = 0;
    Future<ActorHandle<Trainer>> spawned;
  };
  struct LoaderSeat {
    ActorHandle<Loader> handle;
    int number = 0;
  };

  void learn_data();
  Future<ActorHandle<Loader>> start_loader(int number);
  /// It is withdrawn if the job ends before it has started.
  template <class Actor>
  Future<ActorHandle<Actor>> start_worker(const ActorOptions& options);
  template <class Actor>
  Future<ActorHandle<Actor>> employ(const ActorAddress& worker, const ActorOptions& otherwise);
  void end_worker(const ActorAddress& worker, const std::string& why);
  void read_first_batch(const ActorHandle<Loader>& loader);
  void first_loader_died(const ErrorInfo& how);
  void watch_first_loader();
  void start_trainers();
  void take_trainers_back(const ErrorInfo& why);
  void trainers_have_places();
  void tell_why_waits();
  void begin();
  void start_machine();
  void check_metrics(const DriverConfig& config) const;
  /// Refuses to resume what the checkpoints show to be another job.
  void check_resumed(const std::string& numerics);
  std::optional<ErrorInfo> does_not_belong(const TrainerHello& hello);
  void compare_processor(ActorId worker, const std::string& numerics);
  bool has_folder() const;
  /// What a trainer is told of the data.
  DataInfo trainers_data() const;
  void tick();
  void feed(const DriverEvent& event);
  void carry_out(const std::vector<DriverAction>& actions);

  void act(const SpawnActor& action);
  void act(const CancelSpawn& action);
  void act(const SendOrder& action);
  void act(const KillActor& action);
  void act(const CommitStep& action);
  void act(const RewindLedger& action);
  void act(const AcceptCheckpoint& action);
  void act(const DiscardCheckpoint& action);
  void act(const EpochDone& action);
  void act(const DeadlineExpired& action);
  void act(const Resumed& action);
  void act(const Notice& action);
  void act(const Recovered& action);
  void act(const Held& action);
  void act(const JobDone& action);
  void act(const JobFailed& action);

  /// Whom the cluster has no room for: the machine hears why, as long as it waits, and once that it starts
  /// slowly.
  void tell_who_waits();
  ActorOptions trainer_options() const;
  void start_trainer(GroupId together = {}, int bundle = -1);
  void spawn_trainer(std::uint64_t token);
  void spawn_loader(std::uint64_t token);
  void spawn_failed(std::uint64_t token, const ErrorInfo& why);
  void trainer_up(std::uint64_t token, int number, ActorHandle<Trainer> trainer);
  void loader_up(std::uint64_t token, int number, ActorHandle<Loader> loader);
  void finish(Result<RunResult> result);
  void end_actors();
  void tell_where();
  void tell_not_finite(const CommitStep& action);
  std::vector<report::Event> take_events();
  void emit(report::Event event);
  struct WeightsAsk;
  void serve_weights_asks();
  bool serve(std::uint64_t number, WeightsAsk& ask);
  void weights_copied(std::uint64_t number, ActorId trainer, const Result<KeptState>& copy);
  void set_end_state(const EndState& state);
  void ask_for_shard(bool weights_only, int shard, std::uint64_t offset, Promise<FinalPiece> piece);
  std::string why_not_of(std::uint64_t state, ActorId holder, const HeldPiece& held);
  void ask_holder(bool weights_only, std::uint64_t offset, Promise<FinalPiece> piece, std::uint64_t state,
                  const std::string& why_none);

  // chaos.cpp
  void check_chaos(std::int64_t last) const;
  void cause_chaos(std::int64_t committed);
  bool cause(const ChaosStep& chaos);
  bool hit_trainer(int rank, int signal);
  bool hit_loader();
  bool hit_process(int pid);
  /// The text with trainers and loaders named as people see them.
  std::string for_people(std::string text) const;
  double rate(std::int64_t samples);

  RunOptions options_;
  Session session_;
  std::optional<DataInfo> data_;
  wire::Bytes snapshot_;
  StateFile snapshot_file_;  ///< instead
  StateDonor donor_;
  Workers spare_;                                     ///< taken over, and not employed so far
  std::vector<ActorAddress> taken_;                   ///< all that were taken over
  std::vector<std::shared_ptr<CallState>> starting_;  ///< workers; some may be there by now
  std::string history_;                               ///< of the state that the job ended with
  EndState end_state_;
  std::uint64_t end_states_ = 0;                 ///< so far: the number of the last one
  std::optional<ActorId> asked_;                 ///< for a piece of that, and has not answered
  bool stops_ = false;                           ///< at the next step
  std::optional<Promise<JobPlace>> asks_where_;  ///< that is
  /// Who wants a copy of the weights.
  struct WeightsAsk {
    Promise<WeightCopy> answer;
    std::optional<ActorId> trainer;  ///< that makes it, or keeps it
    std::optional<KeptState> copy;   ///< until its last step is committed
    int failures = 0;
  };
  std::map<std::uint64_t, WeightsAsk> weights_asks_;
  std::uint64_t last_weights_ask_ = 0;
  std::unique_ptr<data::LeafSampler> sampler_;
  std::unique_ptr<DriverMachine> machine_;
  std::map<std::uint64_t, ActorHandle<Trainer>> greeted_;  ///< by token: they run, and have not said hello
  std::map<ActorId, TrainerSeat> trainers_;
  std::map<ActorId, LoaderSeat> loaders_;
  std::map<ActorId, std::string> names_;  ///< of everyone who ever was
  std::map<std::uint64_t, bool> cancelled_;
  struct Unanswered {
    std::shared_ptr<CallState> call;
    bool starts = false;  ///< slowly: it has its room
  };
  std::map<std::uint64_t, Unanswered> unanswered_;  ///< spawns, by token
  std::deque<StartedTrainer> early_trainers_;       ///< that the machine has not asked for yet
  bool have_places_ = false;                        ///< the first trainers
  std::optional<Future<void>> places_;              ///< until they have, if they start together
  bool told_why_waits_ = false;
  FirstLoader first_;
  std::optional<std::pair<ActorHandle<Loader>, int>> first_loader_;  ///< the one that tells of the data
  int trainer_count_ = 0;
  int loader_count_ = 0;
  std::optional<TrainerHello> first_hello_;  ///< of the first trainer
  Processors processors_;

  Promise<RunResult> result_;
  bool over_ = false;
  std::int64_t seen_steps_ = 0;  ///< steps up to here are counted in RunResult::not_finite
  bool warned_of_loss_ = false;
  RunResult so_far_;
  Instant started_at_{};
  Instant epoch_started_at_{};
  Instant evaluated_at_{};  ///< when the evaluation before ended; at first when the epoch began
  Instant rate_since_{};
  std::int64_t rate_samples_ = 0;
  double rate_now_ = std::numeric_limits<double>::quiet_NaN();  ///< not known yet
  std::optional<Instant> fault_at_;
  /// Steps that run again.
  struct Replay {
    std::int64_t until = 0;  ///< so many were committed before
    Instant since{};         ///< the first fault
  };
  std::optional<Replay> replay_;
  std::deque<report::Event> events_;  ///< that nobody has asked for, the oldest first
  std::optional<Promise<std::vector<report::Event>>> waiting_;
  MonotonicClock clock_;
};

}  // namespace troupe::train
