#include "actors/ddp/elastic_state.hpp"

#define XXH_INLINE_ALL
#include <torch/torch.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <span>
#include <sstream>
#include <utility>

#include "actors/ddp/agreement.hpp"
#include "actors/ddp/broadcast_state.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/core/whole_file.hpp"

namespace troupe::train {

using collectives::ProcessGroup;

namespace {

torch::Tensor copy_of(const torch::Tensor& tensor) {
  return tensor.detach().cpu().clone();
}

torch::Tensor tensor_of(const std::string& text) {
  torch::Tensor bytes = torch::empty({static_cast<std::int64_t>(text.size())}, torch::kUInt8);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}
std::string characters_of(const torch::Tensor& bytes) {
  const torch::Tensor dense = bytes.contiguous();
  return {static_cast<const char*>(dense.data_ptr()), dense.nbytes()};
}

constexpr std::string_view kSealBegins = "troupe commit 1\n";

/// What is behind the bytes in the file: an archive of LibTorch's has no checksum of its numbers.
std::string seal_of(std::string_view bytes) {
  XXH128_canonical_t hash;
  XXH128_canonicalFromHash(&hash, XXH3_128bits(bytes.data(), bytes.size()));
  return std::string(kSealBegins) +
         std::string(reinterpret_cast<const char*>(hash.digest), sizeof hash.digest);
}

std::string host_name() {
  char name[256] = "?";
  (void)::gethostname(name, sizeof name - 1);
  return name;
}

/// Nobody waits for a rank that failed by itself.
void abort_with(ProcessGroup& group, const std::exception& error) {
  if (group.abort_reason().empty()) group.abort("rank " + std::to_string(group.rank()) + ": " + error.what());
}

}  // namespace

ElasticState::ElasticState(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                           ElasticOptions options)
    : module_(module), optimizer_(optimizer), options_(std::move(options)) {
  (void)facts_of(optimizer_);  // throws for one whose state is not known
  for (const auto& item : module_.named_parameters()) tensors_.push_back({item.key(), item.value()});
  for (const auto& item : module_.named_buffers()) {
    if (item.value().defined()) tensors_.push_back({item.key(), item.value()});
  }
}

ElasticState::~ElasticState() {
  if (writer_.joinable()) writer_.join();
}

void ElasticState::add_bytes(std::string name, std::uint8_t* bytes, std::size_t size) {
  const auto refuse = [&](const char* why, const char* todo) {
    throw BadConfig("cannot add the value " + name + " to an elastic state", why, todo);
  };
  if (synced_) refuse("it was synced already", "add values before run_elastic() or sync()");
  if (std::any_of(values_.begin(), values_.end(), [&](const Value& value) { return value.name == name; }))
    refuse("there is one of that name", "give each value a name of its own");
  values_.push_back({std::move(name), bytes, size});
}

std::vector<Fact> ElasticState::facts() const {
  std::vector<Fact> all;
  for (const NamedTensor& tensor : tensors_) all.push_back(fact_of("tensor", tensor));
  for (Fact& fact : facts_of(optimizer_)) all.push_back(std::move(fact));
  for (const Value& value : values_)
    all.push_back({"value " + value.name, std::to_string(value.size) + " bytes"});
  return all;
}

ElasticState::Commit ElasticState::taken() const {
  Commit commit;
  for (const NamedTensor& tensor : tensors_) commit.tensors.push_back(copy_of(tensor.tensor));
  commit.optimizer = snapshot_of(optimizer_);
  for (torch::Tensor* tensor : commit.optimizer.tensors()) *tensor = copy_of(*tensor);
  for (const Value& value : values_)
    commit.values.insert(commit.values.end(), value.bytes, value.bytes + value.size);
  return commit;
}

void ElasticState::flush() {
  if (!writer_.joinable()) return;
  writer_.join();
  written_.get();
}

void ElasticState::commit() {
  flush();
  last_ = taken();
  ++commits_;
  if (writes_) write();
}

void ElasticState::restore() {
  if (!has_commit()) {
    throw BadConfig("cannot restore an elastic state", "nothing was committed",
                    "call sync() or commit() before");
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].tensor.detach().copy_(last_.tensors[i]);
  for (torch::Tensor& parameter : module_.parameters()) parameter.mutable_grad() = torch::Tensor();
  OptimizerSnapshot snapshot = last_.optimizer;
  for (torch::Tensor* tensor : snapshot.tensors()) *tensor = tensor->clone();
  std::size_t index = 0;  // its fields are where their parameters are
  for (auto& group : optimizer_.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      for (OptimizerField& field : snapshot.fields[index]) field.tensor = field.tensor.to(parameter.device());
      ++index;
    }
  }
  install(optimizer_, snapshot);
  const std::uint8_t* at = last_.values.data();
  for (const Value& value : values_) {
    std::memcpy(value.bytes, at, value.size);
    at += value.size;
  }
}

/// The file: torch::save of tensors. What it is of, as text; the number of the commit; the optimizer's
/// fields, as text; parameters and buffers; what the optimizer keeps; values.
void ElasticState::write() {
  std::string of;
  for (const Fact& fact : facts()) of += fact.name + '\t' + fact.value + '\n';
  std::vector<torch::Tensor> all{tensor_of(of),
                                 torch::tensor(static_cast<std::int64_t>(commits_), torch::kInt64),
                                 tensor_of(text_of(last_.optimizer))};
  all.insert(all.end(), last_.tensors.begin(), last_.tensors.end());
  OptimizerSnapshot optimizer = last_.optimizer;
  for (const torch::Tensor* tensor : optimizer.tensors()) all.push_back(*tensor);
  all.push_back(tensor_of(std::string(last_.values.begin(), last_.values.end())));
  const std::string temporary =
      options_.file + ".new-" + host_name() + '-' + std::to_string(::getpid()) + '-' + to_string(generation_);
  std::packaged_task<void()> task([all, temporary, file = options_.file] {  // nobody writes to a commit
    std::ostringstream bytes;
    torch::save(all, bytes);
    std::string whole = std::move(bytes).str();
    whole += seal_of(whole);
    write_whole(file, whole,
                {.temporary = temporary,
                 .durable = true,
                 .what = "cannot write the commit " + file,
                 .todo = "look at the disk and the folder"})
        .value();
  });
  written_ = task.get_future();
  writer_ = start_quiet_thread(std::move(task));
}

void ElasticState::read() {
  const auto refuse = [&](const std::string& why) {
    throw BadInput({ErrorCode::kBadInput,
                    "cannot begin with the commit " + options_.file,
                    why,
                    "give the file of this program, or remove it to begin anew",
                    {},
                    {}});
  };
  std::ifstream file(options_.file, std::ios::binary);
  std::ostringstream bytes;
  if (file.peek() != std::ifstream::traits_type::eof()) bytes << file.rdbuf();
  if (!file.is_open() || file.bad() || bytes.bad()) refuse("it cannot be read");
  std::string archive = std::move(bytes).str();
  const std::size_t seal_bytes = seal_of({}).size();
  const std::string seal = archive.substr(archive.size() - std::min(seal_bytes, archive.size()));
  if (!seal.starts_with(kSealBegins)) refuse("it is cut off, or no commit");
  archive.resize(archive.size() - seal.size());
  if (seal != seal_of(archive)) refuse("it is damaged: its checksum is another one");
  std::vector<torch::Tensor> all;
  try {
    std::istringstream stream(std::move(archive));
    torch::load(all, stream);
  } catch (const std::exception&) {  // LibTorch's words are of its own sources
    refuse("it is no archive of LibTorch");
  }
  if (all.size() < 4) refuse("it is no commit");
  for (const torch::Tensor& tensor : all) {
    if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != torch::kStrided)
      refuse("it has a tensor that no commit has");
  }
  const auto check = [&](const torch::Tensor& found, const std::string& name, torch::ScalarType type,
                         torch::IntArrayRef sizes) {
    if (found.scalar_type() == type && found.sizes() == sizes) return;
    std::ostringstream why;
    why << "it is damaged: " << name << " is " << torch::toString(found.scalar_type()) << ' ' << found.sizes()
        << " there, and " << torch::toString(type) << ' ' << sizes << " in this program";
    refuse(why.str());
  };
  check(all[0], "its description", torch::kUInt8, {all[0].numel()});
  check(all[1], "its number", torch::kInt64, {});
  check(all[2], "the optimizer's description", torch::kUInt8, {all[2].numel()});
  const std::vector<Fact> mine = facts();
  std::istringstream lines(characters_of(all[0]));
  std::string line;
  for (const Fact& fact : mine) {
    const std::string wanted = fact.name + '\t' + fact.value;
    if (!std::getline(lines, line) || line != wanted) {
      std::replace(line.begin(), line.end(), '\t', ' ');
      refuse("it has " + (lines ? line : "nothing") + ", where this program has " + fact.name + ' ' +
             fact.value);
    }
  }
  if (std::getline(lines, line)) refuse("it has more than this program: " + line);
  Commit commit;
  try {
    commit.optimizer = snapshot_for(optimizer_, characters_of(all[2]));
  } catch (const BadInput& error) {
    refuse(error.info().why);
  }
  const std::vector<torch::Tensor*> kept = commit.optimizer.tensors();
  if (all.size() != 4 + tensors_.size() + kept.size()) refuse("it is cut off");
  auto next = all.begin() + 3;
  for (const NamedTensor& tensor : tensors_) {
    check(*next, tensor.name, tensor.tensor.scalar_type(), tensor.tensor.sizes());
    commit.tensors.push_back(*next++);
  }
  for (torch::Tensor* tensor : kept) {
    check(*next, "what the optimizer keeps", tensor->scalar_type(), tensor->sizes());
    *tensor = (next++)->contiguous();
  }
  std::int64_t values_size = 0;
  for (const Value& value : values_) values_size += static_cast<std::int64_t>(value.size);
  check(*next, "the bytes of all values", torch::kUInt8, {values_size});
  const std::string values = characters_of(*next);
  commit.values.assign(values.begin(), values.end());
  last_ = std::move(commit);
  commits_ = static_cast<std::uint64_t>(all[1].item<std::int64_t>());
  restore();
}

void ElasticState::sync(ProcessGroup& group) {
  check_agreement(group.host_group(), facts());
  writes_ = group.rank() == 0 && !options_.file.empty();
  generation_ = group.generation();
  try {
    if (writes_ && !synced_ && ::access(options_.file.c_str(), F_OK) == 0) read();
    take_newest(group);
  } catch (const std::exception& error) {
    abort_with(group, error);
    throw;
  }
  synced_ = true;
}

/// Takes over what the rank with the most commits has.
void ElasticState::take_newest(ProcessGroup& group) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  group.host_group().all_gather(std::span(&commits_, 1), all)->wait();
  const auto most = std::max_element(all.begin(), all.end());
  const int root = static_cast<int>(most - all.begin());
  std::vector<torch::Tensor> tensors;
  for (const NamedTensor& tensor : tensors_) tensors.push_back(tensor.tensor);
  broadcast_tensors(group, tensors, root);
  broadcast_optimizer_state(optimizer_, group, root);
  for (const Value& value : values_)
    group.host_group().broadcast(std::span(value.bytes, value.size), root)->wait();
  commits_ = *most;
  last_ = taken();
}

void run_elastic(std::shared_ptr<ProcessGroup> group, ElasticState& state,
                 const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body, int reset_limit) {
  for (int resets = 0;; ++resets) {
    std::string why;
    try {
      state.sync(*group);
      try {
        body(group);
      } catch (const BadConfig&) {
        // On every rank alike, as a rule: none of them takes another one's end for a death. Where it is on
        // this one alone, the others call something else, and all hear of it.
        try {
          group->host_group().barrier()->wait();
        } catch (const Error&) {
        }
        throw;
      } catch (const std::exception& error) {
        abort_with(*group, error);
        throw;
      }
      group->host_group().barrier()->wait();  // the last step of another may fail yet
      break;
    } catch (const CollectiveAborted& error) {
      if (resets == reset_limit) throw;
      why = error.what();
    } catch (const Timeout& error) {
      if (resets == reset_limit) throw;
      why = error.what();
    }
    log(LogLevel::kWarning, "back to commit " + std::to_string(state.commits()) + ": " + why);
    group = group->rebuild();
    if (state.has_commit()) state.restore();
  }
  state.flush();  // nobody waits for the disk now
}

}  // namespace troupe::train
