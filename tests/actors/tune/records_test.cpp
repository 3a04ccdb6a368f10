#include "actors/tune/records.hpp"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "actors/train/job/describe_job.hpp"
#include "actors/tune/sweep_numerics.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::tune;
using test::TempFolder;

namespace {

enum class Rule : std::uint8_t { kSgd, kAdamW };
enum PlainRule { kOneRule = 1 };
struct RuledJob {
  double lr;
  Rule rule;
  std::optional<Rule> other;
  Rule unknown;
  PlainRule plain;
};
enum class Switch : std::uint8_t { kOff, kOn };
struct SwitchedJob {
  Switch is;
};

const SweepIdentity kIdentity{{"job", "Digits{0.01}"}, {"space", "lr log_uniform(0.0001, 0.1)"}};

std::string file_in(const std::string& folder) {
  return folder + "/results.jsonl";
}
Trial trial() {
  return {
      .number = 3, .config = {{{"lr", 0.1}, {"kind", std::string("s\xffgd")}, {"big", true}}}, .epoch = 1};
}

}  // namespace

/// Settings say "on" or "off".
template <>
struct troupe::config::Kind<Switch> {
  static std::string type() { return "on or off"; }
  static std::string set(const Value& value, Switch& field) {
    field = value == Value{std::string("on")} ? Switch::kOn : Switch::kOff;
    return {};
  }
  static std::optional<Value> get(Switch) { return std::nullopt; }
  static Value read(std::string_view text) { return Value{std::string(text)}; }
};

TEST_CASE("an event comes back from its line, with every bit of its numbers") {
  const TrialReported report{3, 2, {{"a", 0.1 + 0.2}, {"b", -HUGE_VAL}, {"c", 1e-300}}};
  const std::string line = record_line(report, trial(), {{}, "stop", "below the cutoff"});
  CHECK(line.find('\n') == std::string::npos);
  CHECK(line.starts_with(R"({"event":"report","trial":3,"config":{"lr":0.1,"kind":)"));
  CHECK(std::get<TrialReported>(read_record(line).value()).metrics == report.metrics);
  const TrialReported none{3, 2, {{"a", std::nan("")}}};
  CHECK(std::isnan(
      std::get<TrialReported>(read_record(record_line(none, trial(), {})).value()).metrics.at("a")));
  CHECK(std::get<TrialEnded>(read_record(record_line(TrialEnded{3, "ab"}, trial(), {})).value()).state_hash ==
        "ab");
  CHECK(std::get<TrialFailed>(read_record(record_line(TrialFailed{3, "a\nb"}, trial(), {})).value()).error ==
        "a\nb");
  CHECK(std::get<TrialEnded>(read_record(record_line(TrialEnded{3, "", 9}, trial(), {})).value())
            .not_finite_step == 9);
  CHECK(std::get<TrialFailed>(read_record(record_line(TrialFailed{3, "", true}, trial(), {})).value())
            .is_final);
  CHECK_FALSE(
      std::get<TrialFailed>(read_record(record_line(TrialFailed{3, ""}, trial(), {})).value()).is_final);
  SweepStep step{{}, "exploit", "it is among the worst"};
  step.clones = {{3, 5, 2, {{{"lr", 0.2}}}}};
  step.stopped = {{.number = 4, .epoch = 1, .why = "its bracket is finished"}};
  const auto lines = record_lines(report, trial(), step);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == record_line(report, trial(), step));
  CHECK(lines[1] == R"({"event":"clone","trial":3,"config":{"lr":0.2},"epoch":2,"from":5,"decision":"clone",)"
                    R"("why":"it is among the worst"})");
  CHECK(lines[2] == R"({"event":"stop","trial":4,"config":{},"epoch":1,"decision":"stopped",)"
                    R"("why":"its bracket is finished"})");
  for (const int derived : {1, 2}) CHECK_FALSE(read_record(lines[derived]));
  CHECK(without_times(with_times(line, 12, 34)) == line);
  CHECK(without_times(line) == line);
  CHECK(with_times(line, 12, 34).ends_with(R"(,"began_ms":12,"at_ms":34})"));
  CHECK(std::get<TrialReported>(read_record(with_times(line, 12, 34)).value()).metrics == report.metrics);
  for (const char* bad :
       {"", "{", "[]", "{}", R"({"trial":-1})", R"({"trial":1e30,"event":"end"})",
        R"({"trial":1,"event":"report","epoch":1,"metrics":{"a":"x"}})", R"({"trial":1,"event":"nonsense"})"})
    CHECK_FALSE(read_record(bad));
}

TEST_CASE("records are taken up where they end, without a line that was half written") {
  const TempFolder folder;
  const std::string name = folder.path() + "/a/b";
  {
    auto made = RecordFile::create(name, kIdentity).value();
    struct stat file {};
    REQUIRE(::stat(file_in(name).c_str(), &file) == 0);
    CHECK((file.st_mode & 0777) == 0600);  // the program's arguments are inside
    made.append("{\"one\":1}").value();
    made.sync().value();
  }
  std::ofstream(file_in(name), std::ios::app) << "{\"tw";
  {
    auto opened = RecordFile::open(name, kIdentity).value();
    CHECK(opened.lines() == std::vector<std::string>{"{\"one\":1}"});
    opened.append("{\"three\":3}").value();
  }
  CHECK(RecordFile::open(name, kIdentity).value().lines().size() == 2);
}

TEST_CASE("another sweep, one that runs and one that is there already are refused") {
  const TempFolder folder;
  CHECK(RecordFile::open(folder.path(), kIdentity).error().code == ErrorCode::kRefused);
  {
    auto runs = RecordFile::create(folder.path(), kIdentity).value();
    const auto second = RecordFile::open(folder.path(), kIdentity);
    REQUIRE_FALSE(second);
    CHECK(second.error().what == "the sweep runs already");
  }
  CHECK(RecordFile::create(folder.path(), kIdentity).error().what == "there is a sweep of this name already");
  auto other = kIdentity;
  other[1].second = "lr uniform(0, 1)";
  const auto refused = RecordFile::open(folder.path(), other);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().why ==
        "its space was 'lr log_uniform(0.0001, 0.1)', this one's is 'lr uniform(0, 1)'");
}

// threads = 0 were chosen anew by a resume on another cluster, to other bits.
TEST_CASE("the cluster that a sweep began on is what its first line says, wherever it is resumed") {
  const TempFolder folder;
  auto first = kIdentity, later = kIdentity;
  for (const auto key : {kCpus, kPlaces}) {
    first.emplace_back(key, "2");
    later.emplace_back(key, "64");
  }
  (void)RecordFile::create(folder.path(), first).value();
  const auto resumed = RecordFile::open(folder.path(), later).value();
  CHECK(resumed.recorded(kCpus) == "2");
  CHECK(resumed.recorded(kPlaces) == "2");
}

TEST_CASE("a trial that computes otherwise than the first is told, once; threads and GPUs are the options'") {
  const TempFolder folder;
  SweepNumerics first(folder.path());
  CHECK_FALSE(first.compare(0, "libtorch 2.13; Zen 4; threads 2"));
  CHECK_FALSE(first.compare(1, "libtorch 2.13; Zen 4; threads 8; gpu NVIDIA H200"));
  SweepNumerics resumed(folder.path());
  CHECK_FALSE(resumed.compare(2, ""));  // nobody knows
  const auto told = resumed.compare(3, "libtorch 2.13; Zen 5; threads 2");
  REQUIRE(told);
  CHECK_THAT(*told,
             Catch::StartsWith("trial 3 computes with 'libtorch 2.13; Zen 5; ', and trials before it with "
                               "'libtorch 2.13; Zen 4; '"));
  CHECK_FALSE(resumed.compare(4, "libtorch 2.13; Zen 5; threads 2"));
}

TEST_CASE("what stands where the records should be, and is no file, is said and left alone") {
  const TempFolder folder;
  const std::string a_folder = folder.path() + "/folder", a_pipe = folder.path() + "/pipe";
  std::filesystem::create_directories(file_in(a_folder));
  std::filesystem::create_directories(a_pipe);
  REQUIRE(::mkfifo(file_in(a_pipe).c_str(), 0600) == 0);
  for (const auto& [where, what] : {std::pair{a_folder, "a folder"}, std::pair{a_pipe, "a pipe"}}) {
    for (const auto& tried : {RecordFile::open(where, kIdentity), RecordFile::create(where, kIdentity)}) {
      REQUIRE_FALSE(tried);
      CHECK(tried.error().message().find("'" + file_in(where) + "' is " + what) != std::string::npos);
    }
  }
}

// Was: a program with an enum whose settings it fills itself did not compile.
TEST_CASE("an enum with a Kind of its own is told as a number where that names no values") {
  std::string text;
  train::describe(text, SwitchedJob{Switch::kOn});
  CHECK(text == "{1}");
}

// Was: Digits{0.02, 0.9, 0} in the header of a run whose table says kind=sgd.
TEST_CASE("a job's struct is told with the names of an enum's values") {
  std::string text;
  train::describe(text, RuledJob{0.02, Rule::kSgd, Rule::kAdamW, static_cast<Rule>(40), kOneRule});
  CHECK(text == "{0.02, sgd, " + config::plain_name("kAdamW") + ", 40, 1}");
}
