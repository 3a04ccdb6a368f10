#include "actors/ddp/elastic_state.hpp"

#include <torch/torch.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "actors/ddp/distributed_optimizer.hpp"
#include "collectives/rendezvous/init.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/support.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

namespace troupe::train::testing {
namespace {

using test::read_file;
using test::TempFolder;

constexpr std::size_t kSealBytes = 32;

/// What a commit's file ends with.
std::string seal_of(const std::string& archive) {
  XXH128_canonical_t hash;
  XXH128_canonicalFromHash(&hash, XXH3_128bits(archive.data(), archive.size()));
  return "troupe commit 1\n" + std::string(reinterpret_cast<const char*>(hash.digest), sizeof hash.digest);
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

torch::Tensor loss_of(Pair& net, int step, int rank) {
  return (net->forward(input(rank)) - torch::cos(input(step))).square().mean();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  return names;
}

/// What a program trains: Adam on Pair, a step a call.
struct Program {
  explicit Program(const std::string& file = {}) : state(*net, adam, {file}) { state.add("step", step); }
  void train(DistributedOptimizer& optimizer) {
    optimizer.zero_grad();
    loss_of(net, step, optimizer.group().rank()).backward();
    optimizer.step();
    ++step;
  }
  std::string text() {
    forget_gradients(*net);
    for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad() = parameter.detach().clone();
    return gradients_text(*net) + std::to_string(step) + ' ' + std::to_string(state.commits());
  }

  Pair net = [] {
    torch::manual_seed(1);
    return Pair();
  }();
  torch::optim::Adam adam{net->parameters(), torch::optim::AdamOptions(0.01)};
  int step = 0;
  ElasticState state;
};

/// Ranks of a group that can be made again without those that died.
std::vector<std::string> fork_elastic(int ranks, const std::function<std::string(int me, Group)>& body) {
  const TempFolder folder;
  const std::string url = "file://" + folder.path() + "/meeting?world_size=" + std::to_string(ranks);
  return fork_ddp(ranks, [&](const Group& place) {
    const int me = place->rank();
    return body(me, collectives::init_process_group("native", url + "&rank=" + std::to_string(me)));
  });
}

TEST_CASE("after the death of a rank the others go on from the last commit without it") {
  const auto said = fork_elastic(3, [](int me, const Group& first) -> std::string {
    Program program;
    int begun = 0;
    run_elastic(first, program.state, [&](const Group& group) {
      ++begun;
      DistributedOptimizer optimizer(program.adam, program.net->named_parameters(), group);
      while (program.step < 10) {
        if (program.step % 4 == 0) program.state.commit();
        if (me == 1 && program.step == 6) ::raise(SIGKILL);
        program.train(optimizer);
      }
    });
    if (begun != 2) return "begun " + std::to_string(begun) + " times";
    // The same in one process: 3 ranks up to the commit at step 4, 2 from there.
    Program alone;
    for (; alone.step < 10; ++alone.step) {
      const int ranks = alone.step < 4 ? 3 : 2;
      forget_gradients(*alone.net);
      for (int rank = 0; rank < ranks; ++rank) (loss_of(alone.net, alone.step, rank) / ranks).backward();
      alone.adam.step();
    }
    for (std::size_t i = 0; i < alone.net->parameters().size(); ++i) {
      if (!torch::allclose(alone.net->parameters()[i], program.net->parameters()[i], 1e-5, 1e-5))
        return "differs";
    }
    return program.text();
  });
  CHECK_THAT(said[0], Catch::StartsWith("first.weight") && Catch::EndsWith(" 10 4"));
  CHECK(said[1].find("-9") != std::string::npos);
  CHECK(said[2] == said[0]);
}

TEST_CASE("a rank that dies when others are through with their last step takes them back to the commit") {
  const TempFolder through;
  const auto said = fork_elastic(3, [&](int me, const Group& first) {
    Program program;
    int begun = 0;
    run_elastic(first, program.state, [&](const Group& group) {
      ++begun;
      program.step += group->size();
      write_file(through.path() + "/" + std::to_string(me), "");
      const auto all = [&] {
        return std::filesystem::exists(through.path() + "/0") &&
               std::filesystem::exists(through.path() + "/2");
      };
      if (me == 1 && test::eventually(all, std::chrono::seconds(60))) ::raise(SIGKILL);
    });
    return std::to_string(begun) + " times, " + std::to_string(program.step);
  });
  CHECK(said[0] == "2 times, 2");
  CHECK(said[2] == said[0]);
}

// Was: some ranks took the others' BadConfig for one more death, and went on with a fraction of the data.
TEST_CASE("a number of ranks that Adasum has no use for ends the run on every rank") {
  const auto said = fork_elastic(4, [](int me, const Group& first) {
    Program program;
    return thrown_by([&] {
      run_elastic(first, program.state, [&](const Group& group) {
        DistributedOptimizer optimizer(program.adam, program.net->named_parameters(), group,
                                       {.op = GradientOp::kAdasum});
        while (program.step < 10) {
          program.state.commit();
          if (me == 1 && program.step == 3) ::raise(SIGKILL);
          program.train(optimizer);
        }
      });
    });
  });
  for (const int rank : {0, 2, 3})
    CHECK_THAT(said[std::size_t(rank)],
               Catch::StartsWith("BadConfig: ") && Catch::Contains("3 is no power of two"));
}

TEST_CASE("what the loop throws on one rank reaches the others") {
  const auto said = fork_ddp(2, [](const Group& place) {
    Program program;
    return thrown_by([&] {
      run_elastic(
          place, program.state,
          [&](const Group& group) {
            if (group->rank() == 1) throw std::out_of_range("no more batches");
            DistributedOptimizer optimizer(program.adam, program.net->named_parameters(), group);
            program.train(optimizer);
          },
          0);
    });
  });
  CHECK_THAT(said[0], Catch::StartsWith("CollectiveAborted") && Catch::Contains("rank 1: no more batches"));
  CHECK(said[1] == "other: no more batches");
}

TEST_CASE("a run that begins anew from a commit's file has the bits of one that was never stopped") {
  const TempFolder folder;
  const auto run = [](const std::string& file, int until) {
    return fork_ddp(2, [&](const Group& group) {
      Program program(file);
      if (!file.empty() && group->rank() == 1) program.step = 77;  // what rank 0's file has counts
      run_elastic(group, program.state, [&](const Group& of) {
        DistributedOptimizer optimizer(program.adam, program.net->named_parameters(), of);
        for (;;) {
          if (program.step % 2 == 0) program.state.commit();
          if (program.step == until) return;
          program.train(optimizer);
        }
      });
      return program.text();
    });
  };
  const auto whole = run({}, 8);
  const auto part = run(folder.path() + "/commit", 5);
  CHECK_THAT(part[0], Catch::EndsWith(" 5 3"));
  const auto rest = run(folder.path() + "/commit", 8);
  CHECK_THAT(rest[0], Catch::EndsWith(" 8 6"));  // steps 0, 2, 4; 4 again, 6, 8
  CHECK(rest[0].substr(0, rest[0].rfind(' ')) == whole[0].substr(0, whole[0].rfind(' ')));
  CHECK(rest[0] == rest[1]);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"commit"});
}

TEST_CASE("restore() takes parameters, buffers, the optimizer and values back, without a group") {
  Program program;
  const auto step = [&] {
    forget_gradients(*program.net);
    loss_of(program.net, program.step, 0).backward();
    program.adam.step();
    ++program.step;
  };
  CHECK_THAT(thrown_by([&] { program.state.restore(); }), Catch::Contains("nothing was committed"));
  step();
  program.state.commit();
  step();
  step();
  const std::string wanted = program.text();
  program.state.restore();
  CHECK(program.step == 1);
  step();
  step();
  CHECK(program.text() == wanted);
}

TEST_CASE("an elastic state refuses another program's file and values, with one clear error") {
  using Catch::Contains;
  const TempFolder folder;
  const auto error_of = [](const std::function<void(const Group&)>& body) {
    return fork_ddp(1, [&](const Group& group) { return thrown_by([&] { body(group); }); })[0];
  };
  CHECK(error_of([&](const Group& group) {
          Program program(folder.path() + "/commit");
          program.state.sync(*group);
          program.state.commit();
          program.state.flush();
        }) == "nothing thrown");
  CHECK_THAT(error_of([&](const Group& group) {
               Pair wide(12);
               torch::optim::Adam adam(wide->parameters(), 0.1);
               ElasticState state(*wide, adam, {folder.path() + "/commit"});
               state.sync(*group);
             }),
             Contains("BadInput") && Contains("it has tensor first.weight Float [8, 8], where this program "
                                              "has tensor first.weight Float [12"));
  CHECK_THAT(error_of([&](const Group& group) {
               Program program(folder.path() + "/commit");
               double best = 0;
               program.state.add("best", best);
               program.state.sync(*group);
             }),
             Contains("it has nothing, where this program has value best 8 bytes"));
  std::ofstream(folder.path() + "/broken") << "no commit";
  CHECK_THAT(error_of([&](const Group& group) {
               Program program(folder.path() + "/broken");
               program.state.sync(*group);
             }),
             Contains("BadInput: cannot begin with the commit") && Contains("remove it to begin anew"));
  CHECK_THAT(error_of([&](const Group& group) {
               Program program(folder.path() + "/no/such");
               program.state.sync(*group);
               program.state.commit();
               program.state.commit();  // waits for the one before
             }),
             Contains("cannot write the commit"));
  const TempFolder blocked;
  CHECK_THAT(error_of([&](const Group& group) {
               Program program(blocked.path() + "/commit");
               program.state.sync(*group);
               std::filesystem::create_directory(blocked.path() + "/commit");
               program.state.commit();
               program.state.flush();
             }),
             Contains("cannot write the commit") && Contains("rename"));
  CHECK(names_in(blocked.path()) == std::vector<std::string>{"commit"});  // nothing half written
  CHECK_THAT(error_of([](const Group&) {
               Program program;
               program.state.add("step", program.step);
             }),
             Contains("there is one of that name"));
  CHECK_THAT(error_of([](const Group& group) {
               Program program;
               program.state.sync(*group);
               program.state.add("late", program.step);
             }),
             Contains("it was synced already"));
}

TEST_CASE("a damaged commit is refused on rank 0, and the others are told") {
  const TempFolder folder;
  const std::string file = folder.path() + "/commit";
  const auto begin = [&] {
    return fork_ddp(2, [&](const Group& group) {
      Program program(file);
      return thrown_by([&] {
        run_elastic(
            group, program.state,
            [&](const Group& of) {
              DistributedOptimizer optimizer(program.adam, program.net->named_parameters(), of);
              program.train(optimizer);
              program.state.commit();
            },
            0);
      });
    });
  };
  CHECK(begin()[0] == "nothing thrown");
  const auto text = [](const std::string& of) {
    torch::Tensor bytes = torch::empty({static_cast<std::int64_t>(of.size())}, torch::kUInt8);
    std::copy(of.begin(), of.end(), bytes.data_ptr<std::uint8_t>());
    return bytes;
  };
  using All = std::vector<torch::Tensor>;
  struct Damage {
    const char* said;
    std::function<void(All&)> make;
  };
  // 0 what it is of, 1 its number, 2 the optimizer's fields, 3 to 7 Pair's, 8 the rates, ..., values
  const std::vector<Damage> damages{
      {"first.weight is Float [3] there, and Float [8, 8]", [](All& all) { all[3] = torch::ones({3}); }},
      {"first.weight is Float [1] there", [](All& all) { all[3] = torch::ones({1}); }},
      {"first.bias is Double [8] there", [](All& all) { all[4] = all[4].to(torch::kFloat64); }},
      {"what the optimizer keeps is Double [2] there",
       [](All& all) { all[8] = torch::ones({2}, torch::kFloat64); }},
      {"the bytes of all values is Byte [3] there",
       [](All& all) { all.back() = all.back().narrow(0, 0, 3).clone(); }},
      {"its number is Float [1] there", [](All& all) { all[1] = torch::ones({1}); }},
      {"its description is Float [2] there", [](All& all) { all[0] = torch::ones({2}); }},
      {"its field exp_avg does not fit parameter 0",
       [&](All& all) { all[2] = text("1 exp_avg 6 2 4000000000 4000000000"); }},
      {"its field exp_avg does not fit parameter 0", [&](All& all) { all[2] = text("1 exp_avg 99 2 8 8"); }},
      {"it is cut off", [](All& all) { all.erase(all.end() - 2); }},
  };
  const auto refused = [&](const char* why) {
    CAPTURE(why);
    const auto said = begin();
    CHECK_THAT(said[0], Catch::StartsWith("BadInput: cannot begin with the commit") && Catch::Contains(why) &&
                            Catch::Contains("remove it to begin anew"));
    CHECK_THAT(said[1], Catch::StartsWith("CollectiveAborted") && Catch::Contains(why));
  };
  const std::string whole = read_file(file);
  std::istringstream archive(whole.substr(0, whole.size() - kSealBytes));
  All good;
  torch::load(good, archive);
  for (const Damage& damage : damages) {
    All all = good;
    damage.make(all);
    std::ostringstream bytes;
    torch::save(all, bytes);
    write_file(file, bytes.str() + seal_of(bytes.str()));
    refused(damage.said);
  }
  // Was: weights with a bit that had changed were trained on.
  for (const std::size_t at : {whole.size() / 4, whole.size() / 2, whole.size() - 1}) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 8);
    write_file(file, changed);
    refused("it is damaged: its checksum is another one");
  }
  write_file(file, whole.substr(0, whole.size() / 2));
  refused("it is cut off, or no commit");
  write_file(file, "");
  refused("it is cut off, or no commit");
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  refused("it cannot be read");
}

}  // namespace
}  // namespace troupe::train::testing
