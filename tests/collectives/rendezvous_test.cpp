/// What a launcher says, the job's key, and the note that rank 0 leaves.

#include "collectives/rendezvous/rendezvous.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/rendezvous/job_key.hpp"
#include "collectives/rendezvous/meeting_file.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::collectives;

namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

const Variables kTorch = {{"RANK", "1"},
                          {"WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29500"},
                          {"LOCAL_RANK", "1"}};

Result<Rendezvous> read(const std::string& url, const Variables& variables = {}, int rank = -1,
                        int size = -1) {
  return read_rendezvous(url, rank, size, environment_of(variables));
}

void write_file(const std::string& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
}

}  // namespace

TEST_CASE("env:// reads what launchers set") {
  const auto torch = read("env://", kTorch).value();
  CHECK(torch.rank == 1);
  CHECK(torch.size == 4);
  CHECK(torch.local_rank == 1);
  CHECK(torch.at == Endpoint{"node7", 29500});
  Variables slurm = {
      {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "3"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1"}};
  CHECK(read("env://", slurm).value().rank == 2);
  CHECK(read("env://", slurm).value().at == Endpoint{"::1", 1});
  Variables mpi = {{"OMPI_COMM_WORLD_RANK", "0"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "a"},
                   {"MASTER_PORT", "1"},
                   {"TROUPE_MASTER_PORT", "2"}};
  CHECK(read("env://", mpi).value().size == 2);
  CHECK(read("env://", mpi).value().at.port == 2);
  CHECK(read("env://?rank=3", kTorch).value().rank == 3);
  CHECK(read("env://", kTorch, 0, 9).value().size == 9);
}

TEST_CASE("tcp:// and file:// take rank and size from the options or the URL") {
  const auto tcp = read("tcp://10.0.0.1:5?rank=1&world_size=2").value();
  CHECK(tcp.rank == 1);
  CHECK(tcp.size == 2);
  CHECK(tcp.at == Endpoint{"10.0.0.1", 5});
  CHECK(tcp.local_rank == -1);
  CHECK(read("tcp://[::1]:5", {}, 0, 1).value().at.host == "::1");
  const auto file = read("file:///a/b?host=10.0.0.2", {}, 0, 1).value();
  CHECK(file.path == "/a/b");
  CHECK(file.at.host == "10.0.0.2");
  CHECK(read("file:///a/b", {}, 0, 1).value().at.host == "127.0.0.1");
}

TEST_CASE("what is missing or makes no sense is named") {
  const auto why = [](const std::string& url, const Variables& variables = {}, int rank = -1, int size = -1) {
    const auto place = read(url, variables, rank, size);
    REQUIRE_FALSE(place.ok());
    CHECK(place.error().code == ErrorCode::kBadConfig);
    CHECK_FALSE(place.error().todo.empty());
    return place.error().why;
  };
  CHECK(why("env://") == "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set");
  CHECK(why("env://", {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}}) ==
        "MASTER_PORT is not set");
  const auto with = [](const std::string& name, const std::string& value) {
    Variables changed = kTorch;
    changed[name] = value;
    return changed;
  };
  CHECK(why("env://", with("RANK", "one")) == "the variable RANK is 'one', which is no number");
  CHECK(why("env://", with("RANK", "4")) == "rank 4 of 4 does not exist");
  CHECK(why("env://", with("RANK", "-1")) == "rank -1 of 4 does not exist");
  CHECK(why("env://", with("WORLD_SIZE", "0")) == "rank 1 of 0 does not exist");
  CHECK(why("env://", with("WORLD_SIZE", "99999999999")) ==
        "the variable WORLD_SIZE is '99999999999', which is no number");
  CHECK(why("env://", with("MASTER_PORT", "0")).find("the port is 0") != std::string::npos);
  CHECK(why("env://", with("MASTER_PORT", "http")).find("not a number") != std::string::npos);
  CHECK(why("env://host:1", kTorch) == "an env:// URL has no host or path");
  CHECK(why("tcp://127.0.0.1:5") == "rank, world_size are not given");
  CHECK(why("tcp://127.0.0.1:5", kTorch) ==
        "rank, world_size are not given");  // another launcher's do not count
  CHECK(why("tcp://127.0.0.1:5", {}, 0, 70'000) == "rank 0 of 70000 does not exist");
  CHECK(why("tcp://127.0.0.1", {}, 0, 1) == "it has no port");
  CHECK(why("tcp://127.0.0.1:0", {}, 0, 1) == "a tcp:// URL has a port that is not 0 and no ?host=");
  CHECK(why("file://relative", {}, 0, 1) == "the path of a file:// URL is not absolute");
  CHECK(why("tcp://a:5?colour=1", {}, 0, 1).find("'colour'") != std::string::npos);
  CHECK(why("tcp://a:5?rank=1&rank=2&world_size=3").find("there twice") != std::string::npos);
  CHECK(why("tcp://a:5?rank=x&world_size=3").find("?rank= in the URL") != std::string::npos);
  CHECK(why("ftp://a") == "'ftp://a' is no URL to meet at");
  CHECK(why("") == "'' is no URL to meet at");
}

TEST_CASE("a job's key is 64 hexadecimal digits, in a file that is its owner's alone") {
  const test::TempFolder folder;
  const JobKey key = random_job_key();
  const std::string text = to_text(key);
  CHECK(text.size() == 64);
  CHECK(parse_job_key(" " + text + "\n", "a test").value() == key);
  for (const auto& bad : {std::string(), text.substr(1), text + "0", "g" + text.substr(1)}) {
    const auto parsed = parse_job_key(bad, "a test");
    REQUIRE_FALSE(parsed.ok());
    CHECK((bad.size() < 10 || parsed.error().message().find(bad) == std::string::npos));  // never printed
  }
  const auto configured = [&](const std::string& option, const Variables& variables) {
    return configured_job_key(option, environment_of(variables));
  };
  CHECK_FALSE(configured("", {}).value());
  CHECK(*configured(text, {{"TROUPE_JOB_KEY", "x"}}).value() == key);
  CHECK(*configured("", {{"TROUPE_JOB_KEY", text}}).value() == key);
  CHECK(configured("", {{"TROUPE_JOB_KEY", "x"}}).error().code == ErrorCode::kBadConfig);
  const std::string path = folder / "key";
  CHECK(configured("", {{"TROUPE_JOB_KEY_FILE", path}}).error().code == ErrorCode::kBadConfig);
  write_file(path, text, 0644);
  CHECK(configured("", {{"TROUPE_JOB_KEY_FILE", path}}).error().code == ErrorCode::kRefused);
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  CHECK(*configured("", {{"TROUPE_JOB_KEY_FILE", path}}).value() == key);
}

TEST_CASE("a key for this machine is made by rank 0 and goes with it") {
  const test::TempFolder folder;
  const auto environment = environment_of({{"XDG_RUNTIME_DIR", folder.path()}});
  CHECK(LocalKeyFile::read(7, environment).error().code == ErrorCode::kUnavailable);
  {
    const auto made = LocalKeyFile::create(7, environment).value();
    const auto other = LocalKeyFile::create(8, environment).value();
    CHECK(LocalKeyFile::read(7, environment).value() == made.key());
    CHECK(LocalKeyFile::read(8, environment).value() == other.key());
    struct stat info {};
    REQUIRE(::stat((folder / "troupe/7.key").c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    // What a job that died left is replaced.
    const auto again = LocalKeyFile::create(8, environment).value();
    CHECK(LocalKeyFile::read(8, environment).value() == again.key());
    CHECK_FALSE(again.key() == other.key());
    REQUIRE(::chmod((folder / "troupe").c_str(), 0755) == 0);  // others could put a key there
    CHECK(LocalKeyFile::create(9, environment).error().code == ErrorCode::kRefused);
    CHECK(LocalKeyFile::read(7, environment).error().code == ErrorCode::kRefused);
  }
  CHECK(std::filesystem::is_empty(folder.path()));

  const auto gone = environment_of({{"XDG_RUNTIME_DIR", folder / "of-a-session-that-is-over"}});
  { CHECK(LocalKeyFile::create(9, gone).ok()); }  // in /tmp
}

// Was: of each job whose rank 0 was killed a file stayed for good.
TEST_CASE("the key of a rank 0 that was killed is removed by the next one, a living one's is not") {
  const test::TempFolder folder;
  const auto environment = environment_of({{"XDG_RUNTIME_DIR", folder.path()}});
  const auto lives = LocalKeyFile::create(7, environment).value();
  const pid_t killed = ::fork();
  if (killed == 0) {
    const auto made = LocalKeyFile::create(8, environment);
    std::ofstream(folder / "troupe/9.key.77") << "a part";  // as if killed while it wrote
    ::_exit(made ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(killed, &status, 0) == killed);
  REQUIRE(status == 0);
  REQUIRE(std::filesystem::exists(folder / "troupe/8.key"));
  std::ofstream(folder / "troupe/machine.key") << "a cluster's, whose folder this is, too";
  const auto next = LocalKeyFile::create(10, environment).value();
  CHECK_FALSE(std::filesystem::exists(folder / "troupe/8.key"));
  CHECK_FALSE(std::filesystem::exists(folder / "troupe/9.key.77"));
  CHECK(std::filesystem::exists(folder / "troupe/machine.key"));
  CHECK(LocalKeyFile::read(7, environment).value() == lives.key());
  CHECK(LocalKeyFile::read(10, environment).value() == next.key());
}

TEST_CASE("a meeting note comes back as it was, and cut or changed it is none") {
  const MeetingNote note{.at = {"::1", 77}, .key = random_job_key()};
  const std::string text = to_text(note);
  CHECK(parse_meeting_note(text).value().at == note.at);
  CHECK(parse_meeting_note(text).value().key == note.key);
  CHECK_FALSE(parse_meeting_note(to_text({.at = {"127.0.0.1", 1}})).value().key);
  for (std::size_t n = 0; n < text.size(); ++n) {
    CHECK(parse_meeting_note(text.substr(0, n)).error().code == ErrorCode::kUnavailable);
  }
  CHECK(parse_meeting_note(text + "x").error().code == ErrorCode::kBadInput);
  CHECK(parse_meeting_note("#!/bin/sh\n").error().code == ErrorCode::kBadInput);
}

TEST_CASE("a meeting file has one owner, outlives none, and spares what is no note") {
  const test::TempFolder folder;
  const std::string path = folder / "meet";
  const MeetingNote note{.at = {"127.0.0.1", 5}, .key = random_job_key()};
  {
    auto file = MeetingFile::take(path).value();
    CHECK(MeetingFile::read(path).error().code == ErrorCode::kUnavailable);
    file.write(note).value();
    CHECK(MeetingFile::read(path).value().key == note.key);
    const auto second = MeetingFile::take(path);
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().why == "the rank 0 of a job that runs holds it");
    CHECK(MeetingFile::read(path).value().key == note.key);
  }
  CHECK_FALSE(std::filesystem::exists(path));

  write_file(path, to_text(note), 0600);  // a job that was killed
  { CHECK(MeetingFile::take(path).ok()); }
  CHECK_FALSE(std::filesystem::exists(path));
  write_file(path, "somebody's notes\n", 0600);
  CHECK(MeetingFile::take(path).error().code == ErrorCode::kRefused);
  CHECK(std::filesystem::file_size(path) == 17);
  write_file(path, to_text(note), 0644);
  CHECK(MeetingFile::read(path).error().code == ErrorCode::kRefused);
  CHECK(MeetingFile::take(folder / "no/such/folder").error().code == ErrorCode::kIo);
}

TEST_CASE("names are looked up, and what does not exist is an error") {
  using namespace std::chrono_literals;
  CHECK(resolve("127.0.0.1", 1s).value() == "127.0.0.1");
  CHECK(resolve("localhost", 1s).value() == "127.0.0.1");
  const auto none = resolve("no-such-host.invalid", 30s);
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().what == "cannot find the host 'no-such-host.invalid'");
}
