// The words of a run: streams, programs, environments, and the file in which a rank says why it failed.
#include "scheduler/launch/run_spec.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "runtime/core/held_port.hpp"
#include "scheduler/launch/error_file.hpp"
#include "scheduler/launch/rank_environment.hpp"

using namespace troupe;
using namespace troupe::launch;

TEST_CASE("streams are read as torchrun writes them") {
  const auto both = parse_streams("3").value();
  CHECK(both.of(0) == 3);
  const auto some = parse_streams("0:3,1:1").value();
  CHECK(some.of(0) == 3);
  CHECK(some.of(1) == 1);
  CHECK(some.of(2) == 0);
  for (const char* wrong : {"", "4", "-1", "0:4", "0:", ":1", "0:1,", "0:1,0:2", "a", "0:1;1:1"}) {
    INFO(wrong);
    CHECK_FALSE(parse_streams(wrong));
  }
}

TEST_CASE("a .py file and a module run under python3 -u, anything else itself") {
  using Words = std::vector<std::string>;
  CHECK(command_of({{"a.py", "x"}}).value() == Words{"python3", "-u", "a.py", "x"});
  CHECK(command_of({{"a.b", "x"}, true}).value() == Words{"python3", "-u", "-m", "a.b", "x"});
  CHECK(command_of({{"a.py"}, false, true}).value() == Words{"a.py"});
  CHECK(command_of({{"/bin/true"}}).value() == Words{"/bin/true"});
  CHECK_FALSE(command_of({{"a.b"}, true, true}));
  CHECK_FALSE(command_of({}));
}

TEST_CASE("a program that cannot be executed is refused with the reason") {
  const auto why = [](const std::string& program) {
    const auto checked = check_command({program}, "/");
    return checked ? "nothing is wrong" : checked.error().why;
  };
  CHECK(why("/bin/sh") == "nothing is wrong");
  CHECK(why("bin/sh") == "nothing is wrong");  // from the folder
  CHECK(why("sh") == "nothing is wrong");
  CHECK(why("/no/such") == "No such file or directory");
  CHECK(why("no-such-program") == "no folder of PATH has it");
  CHECK(why("/etc") == "it is a folder");
  CHECK(why("/etc/passwd") == "it is not executable");
  CHECK(why("") == "its name is empty");
}

TEST_CASE("a rank's environment has what torchrun sets, and leaves what the user set") {
  RankPlan plan{.attempt = 2,
                .restarts = 1,
                .max_restarts = 3,
                .group_rank = 1,
                .group_world = 2,
                .first_rank = 2,
                .processes = 2,
                .world = 4,
                .master_addr = "10.0.0.1",
                .master_port = 4321};
  const auto of = [&](const std::set<std::string>& inherited) {
    std::map<std::string, std::string> found;
    for (const auto& entry :
         rank_environment({.role = "trainer", .run_id = "id"}, plan, 1, "/e.json", "eth7",
                          [&](const char* name) { return inherited.count(name) ? "" : nullptr; })) {
      const auto at = entry.find('=');
      found[entry.substr(0, at)] = entry.substr(at + 1);
    }
    return found;
  };
  const std::map<std::string, std::string> expected = {{"RANK", "3"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"WORLD_SIZE", "4"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"GROUP_RANK", "1"},
                                                       {"GROUP_WORLD_SIZE", "2"},
                                                       {"ROLE_NAME", "trainer"},
                                                       {"ROLE_RANK", "3"},
                                                       {"ROLE_WORLD_SIZE", "4"},
                                                       {"MASTER_ADDR", "10.0.0.1"},
                                                       {"MASTER_PORT", "4321"},
                                                       {"TORCHELASTIC_RESTART_COUNT", "1"},
                                                       {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                                       {"TORCHELASTIC_RUN_ID", "id"},
                                                       {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                       {"TORCHELASTIC_ERROR_FILE", "/e.json"},
                                                       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                                       {"OMP_NUM_THREADS", "1"},
                                                       {"GLOO_SOCKET_IFNAME", "eth7"},
                                                       {"NCCL_SOCKET_IFNAME", "eth7"}};
  CHECK(of({}) == expected);
  plan.processes = 1;  // one rank a node: the bits are those of two on one
  CHECK(of({}).at("OMP_NUM_THREADS") == "1");
  plan.world = 1;
  CHECK(of({}).count("OMP_NUM_THREADS") == 0);
  plan.processes = 2;
  plan.world = 4;
  const auto kept = of({"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING"});
  CHECK(kept.count("OMP_NUM_THREADS") + kept.count("GLOO_SOCKET_IFNAME") +
            kept.count("TORCH_NCCL_ASYNC_ERROR_HANDLING") ==
        0);

  CHECK(of({"TROUPE_MASTER_PORT"}).at("TROUPE_MASTER_PORT") == "4321");

  std::string rank = "RANK=9", path = "PATH=/bin";
  char* before[] = {rank.data(), path.data(), nullptr};
  CHECK(with_changes(before, {"RANK=3"}) == std::vector<std::string>{"PATH=/bin", "RANK=3"});
}

TEST_CASE("the message of an error file, whatever is in it") {
  const auto message = [](const std::string& text) {
    const auto read = parse_error_file(text);
    return read ? *read : "refused: " + read.error().why;
  };
  CHECK(message(R"({"message": {"message": "ValueError: no\nmore", "extraInfo": {"timestamp": "1"}}})") ==
        "ValueError: no more");
  CHECK(message(R"({"message": "boom"})") == "boom");
  CHECK(message(R"({"message": "\u001b[31mred"})") == " [31mred");
  CHECK(message("") == "refused: it is no JSON");
  CHECK(message("{\"message\"") == "refused: it is no JSON");
  CHECK(message("[1]") == "refused: it has no message");
  CHECK(message(R"({"message": {"message": 5}})") == "refused: it has no message");
  CHECK(message(std::string(1'000'000, '[')) == "refused: it is no JSON");
  CHECK(message("{\"message\": \"" + std::string(5000, 'x') + "\"}").size() == 1000);
}

TEST_CASE("a held port is free for rank 0, and taken once somebody listens") {
  const auto held = HeldPort::hold(0).value();
  REQUIRE(held.port() != 0);
  CHECK(HeldPort::hold(held.port()));  // which listens there for a moment, as rank 0 does
  CHECK(interface_of("127.0.0.1") == "lo");
  CHECK(interface_of("192.0.2.1").empty());
}
