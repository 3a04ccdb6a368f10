// `troupe tune`, as a person runs it, on records as a sweep leaves them.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/support/contains.hpp"
#include "tests/support/files.hpp"
#include "tests/support/shell.hpp"

using namespace troupe;
using troupe::test::contains, troupe::test::TempFolder;

namespace {

using test::Ran;

Ran tune(const std::string& words) {
  return test::shell(TROUPE_CLI " tune " + words);
}

/// Three trials of four: 0 ran to its end, 1 was stopped with a better figure, 2 failed with a text that is
/// no friend of HTML. The last line is not whole.
// clang-format off
constexpr const char* kRecords = R"records({"event":"sweep","version":1,"job":"Digits{0.1}","space":"lr uniform(0, 1)","scheduler":"asha","metric":"test/accuracy (more is better)","trials":"4","epochs":"2","seed":"0","again":"cd /x:TRIAL && TROUPE_TRIAL=digits:TRIAL ./sweep --trials 4"}
{"event":"report","trial":0,"config":{"lr":0.5,"kind":"a,b"},"epoch":1,"metrics":{"test/accuracy":0.25},"decision":"continue","why":"the first","began_ms":1000,"at_ms":2000}
{"event":"report","trial":1,"config":{"lr":0.125},"epoch":1,"metrics":{"test/accuracy":0.75,"test/loss":"nan"},"decision":"stop","why":"below the cutoff","began_ms":1000,"at_ms":2500}
{"event":"end","trial":1,"config":{"lr":0.125},"epoch":1,"state_hash":"abcd","decision":"stopped","why":"below the cutoff","began_ms":1000,"at_ms":2600}
{"event":"failure","trial":2,"config":{"lr":0.75},"epoch":0,"error":"</script><b>\u001b[2J","decision":"fail","why":"","began_ms":1500,"at_ms":2700}
{"event":"report","trial":0,"config":{"lr":0.5,"kind":"a,b"},"epoch":2,"metrics":{"test/accuracy":0.5},"decision":"continue","why":"","began_ms":1000,"at_ms":3000}
{"event":"end","trial":0,"config":{"lr":0.5,"kind":"a,b"},"epoch":2,"state_hash":"ef","decision":"finished","why":"all epochs done","began_ms":1000,"at_ms":3100}
{"event":"report","trial":3,"conf)records";
// clang-format on

struct Sweeps {
  TempFolder folder;
  Sweeps() { write("digits", kRecords); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(folder.path() + "/" + name);
    std::ofstream(path(name)) << text;
  }
  std::string path(const std::string& name) const { return folder.path() + "/" + name + "/results.jsonl"; }
  std::string at() const { return " --folder " + folder.path(); }
};

}  // namespace

TEST_CASE("troupe tune: a sweep's records as tables and JSON") {
  const Sweeps sweeps;
  const Ran list = tune("list" + sweeps.at());
  CAPTURE(list.output);
  CHECK(list.code == 0);
  CHECK(contains(list.output, "digits                       interrupted          3/4"));
  CHECK(contains(list.output, "test/accuracy 75.00 %\n"));

  const Ran shown = tune("show digits" + sweeps.at());
  CAPTURE(shown.output);
  CHECK(shown.code == 0);
  CHECK(contains(shown.output,
                 "     1       1       75.00 %  stopped    lr=0.125  · below the cutoff\n"
                 "     0       2       50.00 %  finished   lr=0.5 kind=a,b  · all epochs done\n"));
  CHECK_FALSE(contains(shown.output, "\x1b"));

  const Ran best = tune("best digits -o json" + sweeps.at());
  CHECK(best.code == 0);
  const auto json = nlohmann::json::parse(best.output);
  CHECK(json["trial"] == 1);
  CHECK(json["config"]["lr"] == 0.125);
  CHECK(json["state_hash"] == "abcd");
  CHECK(json["weights"].is_null());
  CHECK(json["again"] == "cd /x:TRIAL && TROUPE_TRIAL=digits:1 ./sweep --trials 4");

  // One that ended without a state is refused by the program.
  sweeps.write(
      "lost",
      R"records({"event":"sweep","version":1,"metric":"a","trials":"1","again":"cd /x && TROUPE_TRIAL=lost:TRIAL ./sweep"}
{"event":"report","trial":0,"config":{"lr":0.5},"epoch":1,"metrics":{"a":0.25},"decision":"stop","why":""}
{"event":"stop","trial":0,"config":{"lr":0.5},"epoch":1,"decision":"stopped","why":"nothing else runs"}
)records");
  const auto lost = nlohmann::json::parse(tune("best lost -o json" + sweeps.at()).output);
  CHECK(lost["trial"] == 0);
  CHECK(lost["again"].is_null());

  const Ran rows = tune("show digits -o csv" + sweeps.at());
  CHECK(rows.output ==
        "trial,epoch,decision,began_ms,at_ms,lr,kind,test/accuracy,test/loss\n"
        "0,1,continue,1000,2000,0.5,\"a,b\",0.25,\n"
        "1,1,stop,1000,2500,0.125,,0.75,nan\n"
        "0,2,continue,1000,3000,0.5,\"a,b\",0.5,\n");
}

// What a clone reported before it was made is of another config, and was shown as of its last one.
TEST_CASE("troupe tune shows each report under the config that it was made with, and clones as events") {
  const Sweeps sweeps;
  // clang-format off
  sweeps.write("clones", R"records({"event":"sweep","version":1,"job":"Digits{0.1}","space":"lr uniform(0, 1)","scheduler":"pbt","metric":"test/accuracy (more is better)","trials":"4","epochs":"2","seed":"0"}
{"event":"report","trial":0,"config":{"lr":0.5},"epoch":1,"metrics":{"test/accuracy":0.75},"decision":"continue","why":"","began_ms":1,"at_ms":2}
{"event":"report","trial":1,"config":{"lr":0.25},"epoch":1,"metrics":{"test/accuracy":0.5},"decision":"exploit","why":"it copies trial 0","began_ms":1,"at_ms":3}
{"event":"clone","trial":1,"config":{"lr":0.625},"epoch":1,"from":0,"decision":"clone","why":"it copies trial 0","began_ms":1,"at_ms":3}
{"event":"report","trial":2,"config":{"lr":0.125},"epoch":1,"metrics":{"test/accuracy":0.25},"decision":"exploit","why":"it copies trial 0","began_ms":1,"at_ms":4}
{"event":"clone","trial":2,"config":{"lr":0.375},"epoch":1,"from":0,"decision":"clone","why":"it copies trial 0","began_ms":1,"at_ms":4}
{"event":"report","trial":2,"config":{"lr":0.375},"epoch":2,"metrics":{"test/accuracy":0.875},"decision":"finish","why":"all epochs done","began_ms":5,"at_ms":6}
{"event":"end","trial":2,"config":{"lr":0.375},"epoch":2,"state_hash":"ef","decision":"finished","why":"all epochs done","began_ms":5,"at_ms":7}
{"event":"stop","trial":0,"config":{"lr":0.5},"epoch":1,"decision":"stopped","why":"its bracket is finished","began_ms":1,"at_ms":7}
{"event":"end","trial":3,"config":{"lr":0.75},"epoch":0,"state_hash":"aa","not_finite_step":9,"decision":"stopped","why":"loss is not finite at step 9","began_ms":1,"at_ms":8}
)records");
  // clang-format on
  const Ran shown = tune("show clones" + sweeps.at());
  CAPTURE(shown.output);
  CHECK(shown.code == 0);
  CHECK(contains(shown.output, "     2       2       87.50 %  finished   lr=0.375  · all epochs done\n"));
  CHECK(contains(shown.output,
                 "clone of trial 0 after epoch 1, as lr=0.375; before: lr=0.125, 25.00 % after epoch 1\n"));
  CHECK(contains(shown.output, "     1       1             -  waiting    lr=0.625"));
  CHECK(
      contains(shown.output, "     0       1       75.00 %  stopped    lr=0.5  · its bracket is finished\n"));
  CHECK(contains(shown.output,
                 "     3       0           nan  stopped    lr=0.75  · loss is not finite at step 9\n"));
  CHECK(tune("show clones -o csv" + sweeps.at()).output ==
        "trial,epoch,decision,began_ms,at_ms,from,lr,test/accuracy\n"
        "0,1,continue,1,2,,0.5,0.75\n"
        "1,1,exploit,1,3,,0.25,0.5\n"
        "1,1,clone,1,3,0,0.625,\n"
        "2,1,exploit,1,4,,0.125,0.25\n"
        "2,1,clone,1,4,0,0.375,\n"
        "2,2,finish,5,6,,0.375,0.875\n");
  const auto best = nlohmann::json::parse(tune("best clones -o json" + sweeps.at()).output);
  CHECK(best["trial"] == 2);
  CHECK(best["clones"][0]["before"]["config"]["lr"] == 0.125);
  CHECK(best["clones"][0]["from"] == 0);
  CHECK(best["again"].is_null());
  CHECK(contains(tune("best clones" + sweeps.at()).output,
                 "no command trains it again alone: it goes on from the state of trial 0 ("));
}

// The best single trial was shown, which is another config's than the sweep's own best.
TEST_CASE("troupe tune: with repeats the best is of the config with the best mean") {
  const Sweeps sweeps;
  using nlohmann::json;
  std::string text =
      json{{"event", "sweep"}, {"version", 1},  {"job", "J{}"}, {"metric", "a (more is better)"},
           {"trials", "4"},    {"repeats", "2"}}
          .dump() +
      "\n";
  const double values[] = {0.5, 0.75, 1.0, 0.125};
  for (int trial = 0; trial < 4; ++trial) {
    json line{{"event", "report"}, {"trial", trial},       {"config", {{"lr", trial / 2}}},    {"epoch", 1},
              {"why", ""},         {"decision", "finish"}, {"metrics", {{"a", values[trial]}}}};
    text += line.dump() + "\n";
    line.erase("metrics");
    line["event"] = "end";
    line["decision"] = "finished";
    line["state_hash"] = "ab";
    text += line.dump() + "\n";
  }
  sweeps.write("twice", text);
  const json best = json::parse(tune("best twice -o json" + sweeps.at()).output);
  CHECK(best["trial"] == 1);
  // Was: a single trial's figure stood for its config, without what the sweep decided by.
  CHECK(best["repeats"]["mean"] == 0.625);
  CHECK(best["repeats"]["trials"] == 2);
  const std::string mean = "0.625 with a deviation of 0.1768 over 2 trials";
  CHECK(contains(tune("best twice" + sweeps.at()).output, "its config: a " + mean + "\n"));
  CHECK(contains(tune("list" + sweeps.at()).output, "a " + mean + "\n"));
  CHECK(contains(tune("show twice" + sweeps.at()).output,
                 "Each config 2 times, the best first:\n  lr=0: " + mean +
                     "\n  lr=1: 0.5625 with a deviation of 0.6187 over 2 trials\n"));
  const json shown = json::parse(tune("show twice -o json" + sweeps.at()).output);
  CHECK(shown["configs"][1]["mean"] == 0.5625);
  CHECK(shown["best_config"]["first_trial"] == 0);
  CHECK_FALSE(json::parse(tune("show digits -o json" + sweeps.at()).output).contains("best_config"));
}

TEST_CASE("troupe tune page: the records are inside, and no text of theirs ends the script") {
  const Sweeps sweeps;
  const Ran made = tune("page digits" + sweeps.at());
  CHECK(made.code == 0);
  CHECK(made.output == sweeps.folder.path() + "/digits/page.html\n");
  std::ifstream file(sweeps.folder.path() + "/digits/page.html");
  std::stringstream page;
  page << file.rdbuf();
  CHECK(contains(page.str(), R"("error":"\u003c/script>\u003cb>\u001b[2J")"));
  CHECK_FALSE(contains(page.str(), "@RECORDS@"));
  CHECK_FALSE(contains(page.str(), "http://127"));
  CHECK_FALSE(contains(page.str(), "TROUPE_TRIAL"));  // the command may name a token
  for (const std::string flag : {"-o", "--output"}) {
    const std::string to = sweeps.folder.path() + "/page" + flag + ".html";
    CHECK(tune("page digits " + flag + " " + to + sweeps.at()).output == to + "\n");
    CHECK(std::filesystem::file_size(to) == page.str().size());
  }
  CHECK(tune("page digits -o - " + sweeps.at()).output == page.str());
}

TEST_CASE("troupe tune stop ends the program that holds the records, and no other") {
  const Sweeps sweeps;
  const Ran none = tune("stop digits" + sweeps.at());
  CHECK(none.code == 0);
  CHECK(contains(none.output, "sweep digits does not run here"));
  const std::string ready = sweeps.folder.path() + "/ready";
  const pid_t sweeper = ::fork();
  if (sweeper == 0) {
    const int file = ::open(sweeps.path("digits").c_str(), O_RDWR | O_CLOEXEC);
    ::signal(SIGINT, SIG_IGN);  // as a shell's background has it
    ::signal(SIGTERM, SIG_DFL);
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) ::mkdir(ready.c_str(), 0700);
    for (;;) ::pause();
  }
  for (int i = 0; i < 2000 && ::access(ready.c_str(), F_OK) != 0; ++i) ::usleep(5'000);
  CHECK(contains(tune("list" + sweeps.at()).output, "running"));
  Ran stopped;
  std::thread stopping([&] { stopped = tune("stop digits" + sweeps.at()); });
  int status = 0;
  CHECK(::waitpid(sweeper, &status, 0) == sweeper);
  stopping.join();
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
  CHECK(stopped.code == 0);
  CHECK(contains(stopped.output, "stopped sweep digits"));
}

TEST_CASE("troupe tune says what is wrong with its words and with the records") {
  const Sweeps sweeps;
  CHECK(tune("").code == 2);
  CHECK(tune("show digits -o xml" + sweeps.at()).code == 2);
  CHECK(tune("show" + sweeps.at()).code == 2);
  const Ran unknown = tune("show nothing" + sweeps.at());
  CHECK(unknown.code == 1);
  CHECK(contains(unknown.output, "there is no sweep 'nothing'"));
  sweeps.write("broken", "{\"event\":\"sweep\",\"version\":1,\"trials\":\"4\"}\nnonsense\n");
  const Ran broken = tune("show broken" + sweeps.at());
  CHECK(broken.code == 1);
  CHECK(contains(broken.output, "line 2 is no event of a trial"));
  for (const char* trials : {"99999999999999999999", "-3", "4x", ""}) {
    sweeps.write("many",
                 R"({"event":"sweep","version":1,"metric":"a","trials":")" + std::string(trials) + "\"}\n");
    const Ran many = tune("show many" + sweeps.at());
    CHECK(many.code == 1);
    CHECK(contains(many.output, "line 1 names no number of trials"));
  }
  std::filesystem::create_directories(sweeps.path("folder"));
  CHECK(contains(tune("show folder" + sweeps.at()).output, "/folder/results.jsonl' is a folder"));
  std::filesystem::create_directories(sweeps.folder.path() + "/pipe");
  REQUIRE(::mkfifo(sweeps.path("pipe").c_str(), 0600) == 0);
  CHECK(contains(tune("show pipe" + sweeps.at()).output, "/pipe/results.jsonl' is a pipe"));
  const Ran list = tune("list" + sweeps.at());
  CHECK(list.code == 1);  // the others are shown
  CHECK(contains(list.output, "interrupted"));
}
