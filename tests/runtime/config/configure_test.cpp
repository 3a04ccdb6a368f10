// Structs filled from TOML and from flags, and what is refused with which words.
#include "runtime/config/configure.hpp"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "runtime/config/serving_file.hpp"
#include "runtime/config/settings.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Contains;
using config::nearest;

namespace {

enum class Decay : std::uint8_t { kNone, kHalfCosine };
struct Schedule {
  int warmup = 100;
  Decay decay = Decay::kNone;
  Duration limit = 90s;
};
struct Digits {
  double lr = 0.1;
  std::string kind = "sgd";
  bool augment = false;
  std::uint8_t layers = 3;
  float momentum = 0.9F;
  std::optional<int> samples{};
  std::vector<std::int64_t> sizes{64, 32};
  std::map<std::string, int> none{};  // that no setting fills: it is left out
  Schedule schedule{};
};
struct Options {
  int epochs = 1;
  double lr = 7;
};

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

std::string set(Digits& job, const std::vector<std::string>& words) {
  try {
    return read_configuration(words, {job}, "digits").help;
  } catch (const BadConfig& error) {
    return error.what();
  }
}
std::string refused(const std::vector<std::string>& words) {
  Digits job;
  return set(job, words);
}
/// What is wrong with a file of that text.
std::string refused_file(const std::string& text) {
  const test::TempFolder folder;
  write_file(folder.path() + "/job.toml", text);
  return refused({"--config", folder.path() + "/job.toml"});
}

}  // namespace

namespace troupe::config {
template <>
struct Table<Options> {
  static constexpr const char* kTable = "options";
  static void add(Entries& to, const std::string& table, Options& of) { add_fields(to, table, of); }
};
}  // namespace troupe::config

TEST_CASE("flags fill a struct's fields, by their names and types") {
  Digits job;
  CHECK(set(job, {"--lr",
                  "0.01",
                  "--kind=5",
                  "--augment",
                  "--layers",
                  "255",
                  "--momentum",
                  "1",
                  "--samples",
                  "7",
                  "--sizes",
                  "1,2,3",
                  "--schedule.warmup",
                  "0",
                  "--schedule.decay",
                  "half-cosine",
                  "--limit",
                  "1.5",
                  "--address",
                  "host:1"}) == "");
  CHECK(job.lr == 0.01);
  CHECK(job.kind == "5");
  CHECK(job.augment);
  CHECK(job.layers == 255);
  CHECK(job.momentum == 1);
  CHECK(job.samples == 7);
  CHECK(job.sizes == std::vector<std::int64_t>{1, 2, 3});
  CHECK(job.schedule.warmup == 0);
  CHECK(job.schedule.decay == Decay::kHalfCosine);
  CHECK(job.schedule.limit == 1500ms);
  CHECK(set(job, {"--augment", "false", "--lr", "1", "--lr", "2", "--sizes", ""}) == "");
  CHECK_FALSE(job.augment);
  CHECK(job.lr == 2);  // the last one counts
  CHECK(job.sizes.empty());
}

TEST_CASE("a flag goes before the file, wherever it stands; a table's name may be left out") {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/job.toml";
  write_file(path,
             "lr = 1\nkind = \"adam\"\nsizes = [8]\nschedule.warmup = 3\n[options]\nepochs = 5\nlr = 0.5\n");
  Digits job;
  Options options;
  read_configuration({"--kind", "sgd", "--config", path, "--epochs", "9"}, {job, options}, "digits");
  CHECK(job.kind == "sgd");
  CHECK(job.lr == 1);
  CHECK(job.sizes == std::vector<std::int64_t>{8});
  CHECK(job.schedule.warmup == 3);
  CHECK(options.epochs == 9);
  CHECK(options.lr == 0.5);
  // --lr is the job's own; that of the options has its table.
  read_configuration({"--lr", "3", "--options.lr", "4"}, {job, options}, "digits");
  CHECK(job.lr == 3);
  CHECK(options.lr == 4);
  config::Entries deep;
  config::add_fields(deep, "options.outer", job);
  CHECK(config::parse_flags({"--outer.schedule.warmup", "7"}, deep).ok());
  config::Entries both;
  config::add_fields(both, "first", options);
  config::add_fields(both, "second", options);
  CHECK(config::parse_flags({"--lr", "1"}, both).error().message() ==
        "cannot take --lr: several fields have that name (write --first.lr or --second.lr)");
}

TEST_CASE("fields that are named are those alone") {
  Digits job;
  const auto named = [&](std::vector<std::string> words) {
    return read_configuration(
        words, {{job, {{&Digits::lr, "Learning rate"}, field(&Digits::schedule, &Schedule::warmup)}}},
        "digits");
  };
  named({"--lr", "2", "--schedule.warmup", "5"});
  CHECK(job.lr == 2);
  CHECK(job.schedule.warmup == 5);
  CHECK_THROWS_WITH(named({"--kind", "adam"}), Contains("no 'kind'"));
  CHECK_THAT(named({"--help"}).help,
             Contains("--lr") && Contains("Learning rate (a number) [2]") && !Contains("kind"));
}

TEST_CASE("help has each field with its type and default") {
  Digits job;
  Options options;
  const std::string help =
      read_configuration({"--lr", "2", "--help"}, {job, options}, "digits", "Trains.").help;
  CHECK(job.lr == 0.1);
  CHECK_THAT(help, Contains("Trains.\nusage: digits [--config FILE.toml]") && Contains("--config"));
  CHECK_THAT(help, Contains("--momentum                a number [0.9]\n") &&
                       Contains("a list, each a whole number [[64, 32]]"));
  CHECK_THAT(help, Contains("[schedule]\n  --warmup ") && Contains("one of none, half_cosine [\"none\"]"));
  CHECK_THAT(help, Contains("a number of seconds [90]") && Contains("  --options.lr "));
  CHECK_THAT(help, !Contains("--none"));
}

TEST_CASE("what does not fit is refused with what is expected, and the nearest name") {
  CHECK(refused({"--augmemt", "1"}) ==
        "cannot take --augmemt: there is no 'augmemt'; the nearest is 'augment' (see --help for the names)");
  CHECK_THAT(refused({"--schedule.warpum", "1"}), Contains("the nearest is 'schedule.warmup'"));
  CHECK_THAT(refused({"--quite-different", "1"}), Contains("there is no 'quite_different' (see"));
  CHECK_THAT(refused({"--lr", "fast"}), Contains("lr: \"fast\" is text, where a number is expected"));
  CHECK_THAT(refused({"--lr", "nan"}), Contains("finite"));
  CHECK_THAT(refused({"--momentum", "1e300"}), Contains("out of range"));
  CHECK_THAT(refused({"--layers", "256"}), Contains("256 is out of range: it is 0 to 255"));
  CHECK_THAT(refused({"--layers", "-1"}), Contains("-1 is out of range"));
  CHECK_THAT(refused({"--layers", "99999999999999999999"}),
             Contains("1e+20 is out of range: a whole number has at most 64 bits"));
  CHECK_THAT(refused({"--layers", "1.5"}), Contains("1.5 is a number, where a whole number is expected"));
  CHECK_THAT(refused({"--sizes", "1,x"}), Contains("\"x\" is text, where a whole number"));
  CHECK_THAT(refused({"--decay", "linear"}), Contains("'linear' is not one of none, half_cosine"));
  CHECK_THAT(refused({"--augment=maybe"}), Contains("true or false"));
  CHECK_THAT(refused({"--limit", "1e99"}), Contains("out of range"));
  CHECK_THAT(refused({"--lr"}), Contains("it has no value"));
  CHECK_THAT(refused({"--config"}), Contains("it has no value"));
  CHECK_THAT(refused({"0.5"}), Contains("'0.5': it is no flag"));
  CHECK_THAT(refused({"--config", "/no/such/file.toml"}),
             Contains("cannot read /no/such/file.toml: No such file"));
  CHECK_THAT(refused({"--config", "/"}), Contains("cannot read /"));
}

TEST_CASE("a file that does not fit is refused with the line") {
  CHECK_THAT(refused_file("lr = 1\nlr 2\n"), Contains("job.toml: line 2: "));
  CHECK_THAT(refused_file("lr = 1\nlr = 2\n"), Contains("line 2: "));
  CHECK_THAT(refused_file("kind = \"a\"\n\nlrr = 2\n"),
             Contains("job.toml, line 3: there is no 'lrr'; the nearest is 'lr'"));
  CHECK_THAT(refused_file("[schedul]\nwarmup = 2\n"),
             Contains("line 2: there is no 'schedul.warmup'; the nearest is 'schedule.warmup'"));
  CHECK_THAT(refused_file("[schedul]\n"), Contains("line 1: there is no 'schedul'"));
  CHECK_THAT(refused_file("lr = \"fast\"\n"), Contains("line 1: lr: \"fast\" is text"));
  CHECK_THAT(refused_file("schedule = 3\n"), Contains("'schedule' is a table"));
  CHECK_THAT(refused_file("[lr]\n"), Contains("it is a table, and no value"));
  CHECK_THAT(refused_file("kind = 2020-01-01\n"), Contains("kind is a date"));
  CHECK_THAT(refused_file("[[sizes]]\na = 1\n"), Contains("a table in a list"));
  CHECK_THAT(refused_file("layers = 99999999999999999999\n"), Contains("line 1: "));
  CHECK_THAT(refused_file(std::string(2 << 20, '#')), Contains("more than 1 MiB"));
  CHECK_THAT(refused_file("a = " + std::string(100'000, '[')), Contains("line 1: "));
  CHECK(refused_file("\n# nothing\n[schedule]\n") == "");
}

// A name that begins with what no name has ended the process: the parser asserts it (found by test_fuzz).
TEST_CASE("what the parser has no words for is refused with its line") {
  CHECK_THAT(refused_file("lr = 1\n[$x]\nlayers = 2\n"), Contains("line 2: it is no TOML"));
  CHECK_THAT(refused_file("[$x]"), Contains("line 1: "));
  CHECK_THAT(refused_file("kind = \"\"\"\n[$x]\n\"\"\"\n\n[[$]]\n"), Contains("line 5: it is no TOML"));
}

// One of 20,000 parts ended the process: the parser goes into tables by recursion.
TEST_CASE("a key of very many parts is refused with its line before anything is read") {
  std::string key = "a";
  for (int i = 0; i < 100'000; ++i) key += ".a";
  for (const std::string& text : {key + " = 1\n", "[" + key + "]\n", "[[ " + key + " ]]\n",
                                  "x = {" + key + " = 1}\n", "x = [\"\"\"a\"\"\"\"\", { " + key + " = 1}]\n"})
    CHECK_THAT(refused_file("\n" + text), Contains("line 2: the key has more than 16 parts"));
  const std::string dots(100, '.');
  CHECK(refused_file("# " + dots + "\nkind = \"\"\"\n" + dots + "\\\"\"\"\"\n\"lr\" = 1.5 # " + dots) == "");
  CHECK_THAT(refused_file("kind = '''\n" + dots + "\n'''\n[schedule]\nwarmpu = 1\n"),
             Contains("line 5: there is no 'schedule.warmpu'"));
  CHECK_THAT(refused_file(std::string(2000, 'a') + " = 1\n"),
             Contains("line 1: the name has more than 1024"));
}

TEST_CASE("a pipe is no file of settings, and a key's control characters do not reach a terminal") {
  const test::TempFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(refused({"--config", pipe}), Contains("it is a pipe or a device, and no file"));
  CHECK_THAT(refused({"--config", "/dev/zero"}), Contains("a device"));
  CHECK_THAT(refused({"--config", folder.path()}), Contains("it is a folder"));
  CHECK_THAT(refused_file("\"\\u001b[31m\\u009b\" = 1\n"),
             Contains("there is no '\\x1b[31m\\xc2\\x9b'") || Contains("there is no '\\x1b[31m\xc2\\x9b'"));
}

namespace {

enum class Far : std::uint8_t { kFirst = 100 };
struct Between {
  int before = 1;
  Schedule schedule{};
  int after = 2;
  Far far = Far::kFirst;
  std::vector<Far> all_far{};
};
struct OwnHelp {
  int help = 1;
};
struct OwnConfig {
  struct Inner {
    int config = 1;
  } inner;
};

}  // namespace

TEST_CASE("fields behind a struct stand with their table, and what cannot be set is not listed") {
  Between between;
  const std::string help = read_configuration({"--help"}, {between}, "between").help;
  CHECK(help.find("[]") == std::string::npos);
  CHECK(help.find("--after ") < help.find("[schedule]"));
  CHECK(help.find("far") == std::string::npos);
  OwnHelp own;
  CHECK_THROWS_WITH(read_configuration({}, {own}, "own"),
                    "cannot configure the field 'help': --help is a flag of every program that is configured "
                    "(call it otherwise, or name the fields to configure: {job, {&Job::lr, ...}})");
  OwnConfig inner;
  CHECK_THAT(read_configuration({"--help"}, {inner}, "own").help, Contains("--inner.config "));
}

TEST_CASE("the nearest name is the one with the fewest changes, if there are few") {
  CHECK(nearest("epoch", {"lr", "epochs"}) == "epochs");
  CHECK(nearest("lr", {"rl", "momentum"}) == std::nullopt);
  CHECK(nearest("eopchs", {"epochs", "steps"}) == "epochs");
  CHECK(nearest("", {"a"}) == std::nullopt);
  CHECK(nearest("abcdef", {"uvwxyz"}) == std::nullopt);
}

namespace {

constexpr const char* kServing = R"(
program = "bin/serve"
args = ["--epochs", "1"]
num_cpus = 0.5
[deployments.digits]
weights = "w/digits.safetensors"
replicas = "1:4"
max_batch = 32
batch_wait = 0.25
[deployments."my.net"]
)";

config::ServingFile serving(const std::string& text) {
  return config::parse_serving_file(text, "conf/digits.toml").value();
}
std::string refused_serving(const std::string& text) {
  const auto parsed = config::parse_serving_file(text, "digits.toml");
  return parsed ? "" : parsed.error().message();
}
std::string replaced(std::string text, const std::string& part, const std::string& by) {
  return text.replace(text.find(part), part.size(), by);
}

}  // namespace

TEST_CASE("a serving file is read, and written so that it reads back the same") {
  config::ServingFile file = serving(kServing);
  CHECK(file.job.name == "digits");
  CHECK(file.job.args == std::vector<std::string>{"--epochs", "1"});
  REQUIRE(file.deployments.size() == 2);
  CHECK(file.deployments.contains("my.net"));
  const config::ServingEntry& digits = file.deployments["digits"];
  CHECK(digits.replicas == config::ReplicaRange{1, 4});
  CHECK(digits.max_batch == 32);
  CHECK(digits.batch_wait == 250ms);
  CHECK_FALSE(digits.port.has_value());
  file.job.args.push_back("a \"b\"\n\\c\x01");
  config::resolve_paths(file, "/home/me/conf");
  CHECK(file.job.program == "/home/me/conf/bin/serve");
  CHECK(digits.weights == "/home/me/conf/w/digits.safetensors");
  const auto again = config::parse_serving_file(config::to_toml(file).value(), "else.toml").value();
  CHECK(config::to_toml(again).value() == config::to_toml(file).value());
  CHECK(again.job.args == file.job.args);
  const auto none = config::changes_between(file, again);
  CHECK((none.running.empty() && none.restarted.empty()));
}

// The program, which reads no more, was submitted, and did not understand what it got.
TEST_CASE("a serving file that grows too long for the environment is refused before its program starts") {
  std::string text = "program = \"serve\"\n";
  for (int i = 0; i < 700; ++i) text += "[deployments.d" + std::to_string(i) + "]\nweights = \"w\"\n";
  config::ServingFile file = serving(text);
  REQUIRE(config::to_toml(file));
  config::resolve_paths(file, "/a/folder/with/a/long/name");
  CHECK_THAT(config::to_toml(file).error().message(), Contains("at most 32 KiB"));
}

TEST_CASE("a serving file that does not fit is refused by line and name") {
  CHECK_THAT(refused_serving("[deployments.a]\n"), Contains("it names no program"));
  CHECK_THAT(refused_serving("program = \"x\"\n"), Contains("it names no deployment"));
  CHECK_THAT(refused_serving(replaced(kServing, "max_batch", "max_bacth")),
             Contains("line 8: there is no 'deployments.digits.max_bacth'; the nearest is "
                      "'deployments.digits.max_batch'"));
  CHECK_THAT(refused_serving(replaced(kServing, "1:4", "4:1")), Contains("'4:1' is not MIN:MAX"));
  CHECK_THAT(refused_serving(replaced(kServing, "\"1:4\"", "0")), Contains("'0' is not MIN:MAX"));
  CHECK_THAT(refused_serving("program = \"x\"\ndeployments.a = 3\n"),
             Contains("line 2: 'deployments.a' is no table"));
  CHECK_THAT(refused_serving("program = \"x\"\n[deployments.a.b]\nc = 1\n"),
             Contains("no 'deployments.a.b.c'"));
  CHECK_THAT(refused_serving(std::string(40'000, '#')), Contains("more than 32 KiB"));
}

// The job was started for each of these, and its program ended with an error, or without one.
TEST_CASE("what no deployment can have is refused with its line before anything starts") {
  const auto with = [](const std::string& line) {
    return refused_serving("program = \"x\"\n[deployments.a]\n" + line + "\n");
  };
  CHECK(with("port = 70000") ==
        "cannot take digits.toml, line 3: deployments.a.port = 70000: it is 0 (any free one) to 65535 "
        "(see docs/serving.md)");
  CHECK_THAT(with("health_timeout = -1"),
             Contains("line 3: deployments.a.health_timeout = -1: it is more than 0"));
  CHECK_THAT(with("host = \"nohost\""),
             Contains("line 3: deployments.a.host = \"nohost\": it is not a numeric address"));
  CHECK_THAT(with("start_timeout = 0"), Contains("it is more than 0 seconds"));
  CHECK_THAT(with("drain_timeout = -0.5"), Contains("it is 0 seconds or more"));
  CHECK_THAT(with("max_batch = 0"), Contains("it is 1 or more"));
  CHECK_THAT(with("max_batch = 9\nmax_queue = 8"), Contains("line 4: ") && Contains("less than max_batch"));
  CHECK_THAT(with("threads = 0"), Contains("it is 1 or more"));
  CHECK(with("drain_timeout = 0\nport = 0\ncpus = 0") == "");
  for (const std::string name : {"a b/c", "..", "", "\\u001b[31m"})
    CHECK_THAT(refused_serving("program = \"x\"\n[deployments.\"" + name + "\"]\nport = 1\n"),
               Contains("is no name of a deployment"));
  CHECK_THAT(refused_serving("program = \"x\"\n[deployment.digits]\nport = 1\n"),
             Contains("line 3: there is no table 'deployment'; the nearest is 'deployments'"));
  CHECK_THAT(refused_serving("program = \"x\"\n[deploymets]\n"), Contains("the nearest is 'deployments'"));
  CHECK_THAT(refused_serving("program = \"x\"\ndeployments = 5\n"),
             Contains("line 2: 'deployments' is a table (write [deployments.NAME]"));
  CHECK_THAT(refused_serving("programm = \"x\"\n"), Contains("the nearest is 'program'"));
  const auto looked =
      config::parse_serving_file("program = \"x\"\n[deployments.a]\nport = 1\nweights = \"w\"\n", "a.toml",
                                 [](const std::string& path) { return "there is no file " + path; });
  CHECK_THAT(looked.error().message(), Contains("line 4: deployments.a.weights = \"w\": there is no file w"));
}

TEST_CASE("replicas and weights change while it serves; for the rest the program starts again") {
  const std::string text = kServing;
  const auto of = [&](const std::string& part, const std::string& by) {
    return config::changes_between(serving(text), serving(replaced(text, part, by)));
  };
  const auto scaled = of("1:4", "2:8");
  REQUIRE(scaled.running.size() == 1);
  CHECK(scaled.running[0].deployment == "digits");
  CHECK(scaled.running[0].replicas == config::ReplicaRange{2, 8});
  CHECK_FALSE(scaled.running[0].weights.has_value());
  CHECK(scaled.restarted.empty());
  const auto updated = of("w/digits", "w/better");
  REQUIRE(updated.running.size() == 1);
  CHECK(updated.running[0].weights == "w/better.safetensors");
  CHECK(updated.restarted.empty());
  CHECK(of("max_batch = 32", "max_batch = 64").restarted ==
        std::vector<std::string>{"deployments.digits.max_batch was 32, is 64"});
  CHECK(of("max_batch = 32\n", "").restarted ==
        std::vector<std::string>{"deployments.digits.max_batch was 32, is left out"});
  CHECK(of("replicas = \"1:4\"\n", "").restarted.size() == 1);  // nobody knows what the code says
  CHECK(of("num_cpus = 0.5", "num_cpus = 1").restarted == std::vector<std::string>{"num_cpus was 0.5, is 1"});
  CHECK(of("\"my.net\"", "other").restarted ==
        std::vector<std::string>{"deployment my.net is gone", "deployment other is new"});
}
