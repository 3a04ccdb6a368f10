// Writes the corpus, from the encoders: fuzz_corpus FOLDER. Run it after a layout changed on purpose, and
// commit.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "actors/data/batch_layout.hpp"
#include "collectives/flight/dump.hpp"
#include "collectives/native/link.hpp"
#include "collectives/rendezvous/connect/region_share.hpp"
#include "collectives/rendezvous/meeting_file.hpp"
#include "collectives/rendezvous/store/store_wire.hpp"
#include "runtime/core/byte_codec.hpp"
#include "runtime/link/fragment.hpp"
#include "runtime/package/manifest.hpp"
#include "runtime/security/curve_keys.hpp"
#include "runtime/security/join_token.hpp"
#include "runtime/security/key_folder.hpp"
#include "runtime/security/sha256.hpp"
#include "runtime/wire/log_frames.hpp"
#include "runtime/wire/messages.hpp"
#include "scheduler/store/records.hpp"
#include "tests/fuzz/call.hpp"
#include "tests/fuzz/sample.hpp"

namespace troupe::fuzz {
namespace {

namespace fs = std::filesystem;

class Corpus {
 public:
  Corpus(const fs::path& root, const std::string& target) : folder_(root / target) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  /// Something that the decoder accepts.
  void add(const std::string& name, std::span<const std::byte> bytes) const {
    std::ofstream file(folder_ / ("ok-" + name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  void add(const std::string& name, const std::string& text) const {
    add(name, std::as_bytes(std::span(text)));
  }

 private:
  fs::path folder_;
};

/// Secrets that are none: every byte is `fill`.
CurveKeyPair known_keys(std::uint8_t fill) {
  SecretKey secret;
  for (std::byte& byte : secret.reveal_for_writing()) byte = std::byte{fill};
  return CurveKeyPair::from_secret(secret);
}

wire::FrameHeader sample_header(wire::FrameKind kind) {
  wire::FrameHeader header;
  fill(header.to);
  fill(header.from);
  header.kind = kind;
  header.job = JobId{5};
  header.id = 9;
  header.actor = ActorId{3};
  header.method = 0x1234567890abcdefULL;
  return header;
}

void frames(const fs::path& root) {
  const Corpus corpus(root, "frame_header");
  for (int kind = 1; kind <= static_cast<int>(wire::kLastFrameKind); ++kind) {
    corpus.add(std::to_string(kind), wire::encode_header(sample_header(static_cast<wire::FrameKind>(kind))));
  }
}

template <std::size_t I = 0>
void control_messages(const Corpus& corpus) {
  if constexpr (I < std::variant_size_v<wire::Control::Variant>) {
    wire::Control message;
    fill(message.emplace<I>());
    wire::FrameHeader header;
    wire::Bytes bytes{static_cast<std::byte>(I)};
    const wire::Bytes body = wire::encode_control(message, header);
    bytes.insert(bytes.end(), body.begin(), body.end());
    corpus.add(std::to_string(I), bytes);
    control_messages<I + 1>(corpus);
  }
}

/// The messages of the head's machine, each alternative: they cross inside of ToHead and FromHead.
template <std::size_t I, class Variant, class Wrap>
void alternatives(const Corpus& corpus, const std::string& name, const Wrap& wrap) {
  if constexpr (I < wire::detail::kAlternatives<Variant>) {
    Variant value;
    fill(value.template emplace<I>());
    corpus.add(name + std::to_string(I), wrap(value));
    alternatives<I + 1, Variant>(corpus, name, wrap);
  }
}

void messages(const fs::path& root) {
  const Corpus control(root, "control_message");
  control_messages(control);
  const auto as_control = [](wire::Control message) {
    wire::FrameHeader header;
    const wire::Bytes body = wire::encode_control(message, header);
    wire::Bytes bytes{static_cast<std::byte>(header.id)};
    bytes.insert(bytes.end(), body.begin(), body.end());
    return bytes;
  };
  alternatives<0, cluster::ClusterEvent>(control, "event-", [&](const cluster::ClusterEvent& event) {
    return as_control(wire::ToHead{.event = event});
  });
  alternatives<0, cluster::ClusterAction>(control, "action-", [&](const cluster::ClusterAction& action) {
    return as_control(wire::FromHead{.action = action});
  });

  const Corpus records(root, "store_record");
  alternatives<0, cluster::Record>(records, "",
                                   [](const cluster::Record& record) { return encode_record(record); });
  cluster::NodeRecord node;
  cluster::JobRecord job;
  cluster::ActorRecord actor;
  fill(node), fill(job), fill(actor);
  const auto& [node_id, node_name, address, key, cpu, gateway, gpus, since_7] = node.node;
  const auto& [name, incarnation, id, driver, request, ended, since_6, since_8, since_9] = job;
  const auto& spec = actor.spec;
  const auto& demand = spec.demand;
  const auto of_version_1 = [](std::uint8_t kind, const auto&... field) {
    return wire::encode(std::tie(kind, field...));
  };
  records.add("version-1-0",
              of_version_1(0, node_id, node_name, address, key, cpu, gateway, gpus, node.dead));
  records.add("version-1-1", of_version_1(1, name, incarnation, id, driver, request, ended));
  records.add("version-1-2",
              of_version_1(2, actor.actor, spec.job, spec.type, spec.name, spec.payload, demand.cpu_e4,
                           demand.isolated, demand.affinity, demand.gpu_e4, actor.requester, actor.node,
                           actor.process, actor.state, actor.gpus));

  const Corpus logs(root, "log_frames");
  wire::Bytes log;
  logs.add("empty", log);
  for (const auto stream : {wire::LogStream::kOutput, wire::LogStream::kErrors, wire::LogStream::kNote})
    wire::append_log_frame(log, {stream, 1'700'000'000'000, wire::Bytes(40, std::byte{'x'})});
  logs.add("three", log);
  log.resize(log.size() - 50);
  logs.add("cut", log);

  const Corpus packages(root, "job_package");
  packages.add("empty", package_head({}).bytes);
  using Kind = PackageEntry::Kind;
  const auto digest = [](const std::string& text) {
    Sha256 hash;
    hash.update(std::as_bytes(std::span(text)));
    return hash.finish();
  };
  const std::string text = "print(1)";
  wire::Bytes package = package_head({{{"empty", Kind::kFile, 0, digest("")},
                                       {"src", Kind::kFolder, 0, ""},
                                       {"src/a.py", Kind::kExecutable, text.size(), digest(text)}}})
                            .bytes;
  const auto contents = std::as_bytes(std::span(text));
  package.insert(package.end(), contents.begin(), contents.end());
  packages.add("tree", package);

  const Corpus calls(root, "call_arguments");
  Arguments arguments;
  calls.add("empty", wire::encode(arguments));
  fill(arguments);
  calls.add("full", wire::encode(arguments));
  std::get<0>(arguments).choice.emplace<2>(std::get<2>(arguments)[0]);
  calls.add("variant", wire::encode(arguments));
}

void packets(const fs::path& root) {
  const Corpus corpus(root, "link_packets");
  const auto with_length = [](wire::Bytes& to, std::span<const std::byte> packet) {
    ByteWriter(to).write(static_cast<std::uint16_t>(packet.size())).write(packet);
  };
  const auto message = [&](wire::Bytes& to, std::uint32_t number, std::size_t body_bytes) {
    const auto header = wire::encode_header(sample_header(wire::FrameKind::kCall));
    const wire::Bytes body(body_bytes, std::byte{0x5a});
    for (Cutter cutter(number, header, body, 128); !cutter.done(); cutter.advance()) {
      const Packet packet = cutter.next();
      wire::Bytes bytes(packet.size());
      packet.copy_to(bytes.data());
      with_length(to, bytes);
    }
  };
  wire::Bytes short_link{std::byte{0}};
  message(short_link, 1, 0);
  corpus.add("one-packet", short_link);
  wire::Bytes long_link{std::byte{7}};
  with_length(long_link, hello_packet());
  message(long_link, 1, 300);
  message(long_link, 2, 10);
  with_length(long_link, goodbye_packet(2, "it was enough"));
  corpus.add("hello-to-goodbye", long_link);
}

void faults(const fs::path& root) {
  const Corpus corpus(root, "link_faults");
  const auto b = [](std::initializer_list<int> values) {
    wire::Bytes bytes;
    for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
    return bytes;
  };
  corpus.add("whole", b({0, 0, 0, 50, 255, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  corpus.add("lost", b({10, 0, 0, 50, 10, 0, 0, 1, 0, 0, 0, 50, 10, 0, 0, 1, 0, 0, 0}));
  corpus.add("twice", b({10, 0, 0, 50, 10, 0, 2, 2, 0, 50, 10, 0, 0, 3, 0, 0, 0, 0, 0}));
}

void rings(const fs::path& root) {
  const Corpus corpus(root, "ring_memory");
  const auto lengths = [](std::uint16_t written,
                          std::initializer_list<std::pair<int, std::uint32_t>> values) {
    wire::Bytes bytes;
    ByteWriter writer(bytes);
    writer.write(written);
    for (const auto& [at, length] : values) writer.write(static_cast<std::uint16_t>(at)).write(length);
    return bytes;
  };
  corpus.add("one", lengths(2, {{0, 10}}));
  corpus.add("three", lengths(4 + 1 + 3, {{0, 28}, {4, 1}, {5, 20}}));
  // Four of the longest packets but for 8 bytes each, and the mark that the writer went on at the start.
  const std::uint32_t most = 128 * 1024 - 12;
  corpus.add(
      "wrap",
      lengths(0xffff,
              {{0, most}, {0x3fff, most}, {0x7ffe, most}, {0xbffd, most - 16}, {0xfffa, 4}, {0xfffb, 28}}));
}

template <std::size_t I = 0>
void frames_to_node(const Corpus& corpus) {
  if constexpr (I < std::variant_size_v<wire::Control::Variant>) {
    wire::Control message;
    fill(message.emplace<I>());
    wire::FrameHeader header;
    const wire::Bytes body = wire::encode_control(message, header);
    wire::Bytes bytes;
    ByteWriter(bytes)
        .write(std::uint8_t{2})  // control
        .write(static_cast<std::uint8_t>(I % 2 << 3))
        .write(std::uint8_t{0})
        .write(std::uint8_t{1})
        .write(std::uint8_t{0})
        .write(static_cast<std::uint8_t>(I))
        .write(static_cast<std::uint16_t>(body.size()))
        .write(body);
    corpus.add(std::to_string(I), bytes);
    frames_to_node<I + 1>(corpus);
  }
}

void nodes(const fs::path& root) {
  const Corpus corpus(root, "node_machine");
  frames_to_node(corpus);
  for (std::uint8_t kind = 0; kind < 7; ++kind) {
    if (kind == 2) continue;  // control messages are above
    wire::Bytes bytes;
    for (std::uint8_t to = 0; to < 6; ++to) {
      ByteWriter(bytes)
          .write(kind)
          .write(std::uint8_t{0})
          .write(to)
          .write(std::uint8_t{1})
          .write(std::uint8_t{0})
          .write(std::uint8_t{9})
          .write(std::uint16_t{0});
    }
    corpus.add("to-all-" + std::to_string(kind), bytes);
  }
}

void batches(const fs::path& root) {
  const Corpus corpus(root, "batch_layout");
  const auto add = [&](const std::string& name, std::vector<data::FieldSpec> fields) {
    const data::BatchLayout layout(std::move(fields));
    std::vector<data::BatchHeader> aligned(layout.total() / sizeof(data::BatchHeader) + 1);
    void* at = aligned.data();
    std::size_t room = aligned.size() * sizeof(data::BatchHeader);
    auto* start = static_cast<std::byte*>(std::align(data::kBatchAlignment, layout.total(), at, room));
    const std::vector<std::int64_t> indices{4, 2};
    layout.seal({start, layout.total()}, {1, 2, 3}, indices);
    corpus.add(name, wire::Bytes(start, start + layout.total()));
  };
  add("pair", {{"input", data::DType::kFloat32, {2, 1, 2, 2}}, {"target", data::DType::kInt64, {2}}});
  add("kinds", {{"tokens", data::DType::kInt32, {2, 0}},
                {"mask", data::DType::kBool, {3, 2}},
                {"scale", data::DType::kFloat64, {}},
                {"deep", data::DType::kBFloat16, {1, 1, 1, 1, 1, 1, 1, 2}}});
}

void keys(const fs::path& root) {
  const CurveKeyPair own = known_keys(0x11), head = known_keys(0x22);
  Corpus(root, "public_key").add("one", to_string(own.public_key()));
  const Corpus endpoints(root, "endpoint");
  for (const char* text : {"127.0.0.1:7000", "[::1]:1", "node-7.example.org:65535"})
    endpoints.add(std::to_string(std::string(text).size()), std::string(text));

  Corpus(root, "join_token")
      .add("one", write_join_token({.head = {"10.0.0.1", 7000},
                                    .head_key = head.public_key(),
                                    .one_time = own,
                                    .id = 0x1234567890abcdefULL,
                                    .lifetime = std::chrono::seconds(3600)}));

  const Corpus bundles(root, "key_bundle");
  const auto bundle = [&](const std::string& name, const KeyBundle& keys) {
    const UniqueFd file = hand_over(keys).value();
    wire::Bytes bytes(64 << 10);
    const ssize_t got = ::pread(file.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    bundles.add(name, bytes);
  };
  bundle("alone", {.own = own, .head = head.public_key(), .allowed = {}});
  bundle("head", {.own = head,
                  .head = head.public_key(),
                  .allowed = {{own.public_key(), "node/1"}, {head.public_key(), "x"}}});

  // Key files with a secret that is none: of before there were check words, and with one.
  char path[] = "/tmp/troupe-corpus-XXXXXX";
  if (::mkdtemp(path) == nullptr) std::exit(1);
  PublicKey none;
  none.bytes.fill(std::byte{0x11});
  KeyFolder::open(path).value().save_public("two", none).value();
  std::ifstream file(std::string(path) + "/two.pub", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Corpus keys(root, "key_folder");
  keys.add("one", "troupe key 1\n" + std::string(32, '\x11'));
  keys.add("two", text);
  fs::remove_all(path);

  const Corpus folder(root, "cluster_folder");
  folder.add("ipv4", std::string("10.0.0.1:7000\n"));
  folder.add("ipv6", std::string("[::1]:7000"));

  const Corpus admission(root, "admission_register");
  const std::string peer_key = to_string(own.public_key());
  admission.add("peer", static_cast<char>(peer_key.size() << 1 | 1) + peer_key + "node/gpu-7");
  wire::Bytes token{std::byte{(1 << 1)}, std::byte{'7'}};
  ByteWriter(token)
      .write(std::uint64_t{7})
      .write(~std::uint64_t{0} >> 1)
      .write(own.public_key().bytes)
      .write("boot");
  admission.add("token", token);
}

void store_wire(const fs::path& root) {
  using namespace collectives;
  const Corpus requests(root, "store_request");
  for (int op = 1; op <= static_cast<int>(StoreOp::kLeave); ++op) {
    requests.add(std::to_string(op), encode(StoreRequest{.op = static_cast<StoreOp>(op),
                                                         .id = 7,
                                                         .key = "group/1.2/key",
                                                         .value = "value",
                                                         .amount = -3,
                                                         .wait_ms = 60'000}));
  }
  const Corpus responses(root, "store_response");
  for (int status = 1; status <= static_cast<int>(StoreStatus::kFailed); ++status) {
    responses.add(std::to_string(status),
                  encode(StoreResponse{
                      .id = 7, .status = static_cast<StoreStatus>(status), .amount = -3, .value = "value"}));
  }
  const Corpus entries(root, "store_entry");
  entries.add("all", encode(Entry{.ranks = {0, 1, 2}, .value = "here"}));
  entries.add("survivors", encode(Entry{.survivors = true, .ranks = {3, 17}, .value = ""}));
  const std::string value = "host";
  const std::vector<std::pair<int, const std::string*>> all{{0, &value}, {2, &value}, {5, &value}};
  wire::Bytes lists;
  const auto list = [&](const std::string& text) {
    ByteWriter(lists).write(static_cast<std::uint16_t>(text.size())).write(std::string_view(text));
  };
  list(encode_gathered({all.front(), {2, &value}, {5, &value}}, 2));
  const Corpus gathered(root, "store_gathered");
  gathered.add("last", lists);
  lists.clear();
  list(encode_gathered(all, 0));
  gathered.add("all", lists);
  lists.clear();
  const std::string whole = encode_gathered(all, 0), rest = encode_gathered(all, 1);
  list(whole.substr(0, 4 + 8 + value.size()));
  list(rest);
  gathered.add("two", lists);
}

void between_ranks(const fs::path& root) {
  using namespace collectives;
  const Corpus sealed(root, "sealed_stream");
  sealed.add("one", std::string("\x05\0\0", 3));
  sealed.add("three", std::string("\0\0\0\x40\0\0\x20\0\0", 9));

  const Corpus frames(root, "rank_frames");
  constexpr std::uint64_t kBytes = 300;  // of the receives and sends of the target
  const OpWords sent = encode(Op{.kind = OpKind::kSend, .dtype = DType::kUInt8, .peer = 0, .count = kBytes});
  const auto frame = [](FrameHeader header, std::span<const std::byte> payload) {
    header.payload_bytes = payload.size();
    const auto encoded = encode(header);
    wire::Bytes bytes(encoded.begin(), encoded.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  };
  const auto joined = [](std::initializer_list<wire::Bytes> parts) {
    wire::Bytes all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const wire::Bytes data(kBytes, std::byte{3}), elsewhere(8),
      shared{std::byte{1}, std::byte{0}, std::byte{0}, std::byte{0},
             std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0}};
  const auto whole = frame({.kind = FrameKind::kMessage, .sequence = 1, .call = sent}, data);
  const auto offer = [&](std::uint32_t number, const wire::Bytes& place) {
    return frame({.kind = FrameKind::kRequestToSend, .sequence = number, .round = 1, .call = sent}, place);
  };
  const auto plain = [&](FrameKind kind, std::uint32_t number) {
    return frame({.kind = kind, .sequence = number}, {});
  };
  frames.add("message", whole);
  frames.add(
      "offered",
      joined({offer(1, elsewhere),
              frame({.kind = FrameKind::kPayload, .sequence = 1, .call = sent}, std::span(data).first(100)),
              frame({.kind = FrameKind::kPayload, .sequence = 1, .call = sent}, std::span(data).last(200))}));
  frames.add("both", joined({whole, offer(2, shared)}));
  frames.add("credit", joined({plain(FrameKind::kCredit, 2), whole}));
}

void rendezvous(const fs::path& root) {
  using namespace collectives;
  const Corpus handshakes(root, "rank_handshake");
  handshakes.add("alike", std::string());
  handshakes.add("other-rank", std::string("\0\0\1\0\0", 5));  // rank 2 instead of 3
  handshakes.add("unchanged", std::string(5 + 64 + 80 + 48 + 48, '\0'));

  Corpus(root, "region_greeting").add("one", region_greeting(5, "0123456789abcdef0123456789abcdef"));

  const Corpus notes(root, "meeting_note");
  collectives::JobKey key{};
  key.fill(std::byte{0x5a});
  notes.add("key", to_text(MeetingNote{.at = {"10.0.0.1", 29500}, .key = key}));
  notes.add("no-key", to_text(MeetingNote{.at = {"::1", 1}}));

  const Corpus urls(root, "rendezvous_url");
  urls.add("tcp", std::string("tcp://node-7:29500?rank=1&world_size=4"));
  urls.add("file", std::string("file:///tmp/meet?rank=0&world_size=2&host=10.0.0.1"));
  urls.add("env", std::string(
                      "env://\nRANK\n3\nWORLD_SIZE\n4\nMASTER_ADDR\n::1\nMASTER_PORT\n29500\nLOCAL_RANK\n1"));
  urls.add("srun",
           std::string("env://\nSLURM_PROCID\n3\nSLURM_NTASKS\n4\nMASTER_ADDR\nhost\nMASTER_PORT\n1"));

  const Corpus headers(root, "rank_frame_header");
  for (int kind = 1; kind <= static_cast<int>(FrameKind::kLeft); ++kind) {
    headers.add(std::to_string(kind),
                encode(FrameHeader{.kind = static_cast<FrameKind>(kind),
                                   .sequence = 7,
                                   .round = 9,
                                   .call = encode(Op{.kind = OpKind::kAllReduce, .count = 5}),
                                   .payload_bytes = 20,
                                   .freed = 3}));
  }

  flight::Dump dump{.group = "run-1f", .generation = {1, 3}, .backend = "native", .rank = 2, .size = 4};
  dump.host = "one";
  dump.reason = "a collective timed out";
  dump.launched = dump.collectives = 3;
  const Corpus dumps(root, "flight_dump");
  dumps.add("none", encode(dump));
  for (std::uint64_t n = 1; n <= 3; ++n) {
    flight::Operation op{
        .number = n, .state = static_cast<flight::State>(n), .launched_ns = 1000, .error = "why"};
    op.call = {.kind = OpKind::kAllReduce, .count = 100 * n};
    op.call.sequence = n;
    dump.operations.push_back(op);
  }
  dumps.add("three", encode(dump));
}

/// The first byte is what http.cpp's spec_of() takes: 0 is float32 [], 12 float32 [2, 2], 1 int64 [].
void http(const fs::path& root) {
  const Corpus requests(root, "http_request");
  requests.add("get", std::string("GET /v1/digits?x=1 HTTP/1.1\r\nHost: a:80\r\nAccept: */*\r\n\r\n"));
  requests.add("old", std::string("GET http://a/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  const std::string length =
      "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nabcd";
  const std::string chunks =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
      "chunked\r\n\r\n4\r\nabcd\r\n0a\r\n0123456789\r\n0\r\n\r\n";
  requests.add("length", length);
  requests.add("chunks", chunks);
  requests.add("several", length + chunks + "\r\n" + length);

  const Corpus json(root, "tensor_json");
  const auto kind = [](char first, const std::string& rest) { return std::string(1, first) + rest; };
  json.add("scalars", kind(0, "{\"inputs\": [1, -2.5e-3, 0.1]}"));
  json.add("matrices", kind(12, "{\"inputs\": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}"));
  json.add("integers", kind(1, "{\"inputs\": [9223372036854775807]}"));
  json.add("bools", kind(4, "{\"inputs\": [true, false]}"));

  const Corpus raw(root, "raw_tensor");
  raw.add("scalars", kind(0, "float32\n2\nabcdefgh"));
  raw.add("matrices", kind(12, "float32\n1, 2, 2\n0123456789abcdef"));
  raw.add("integers", kind(1, "int64\n1\n01234567"));

  const Corpus kserve(root, "kserve_infer");
  const std::string head = R"({"id":"7","inputs":[{"name":"input","shape":[)";
  kserve.add("scalars", kind(0, "\n" + head + R"(2],"datatype":"FP32","data":[1,-2.5e-3]}]})"));
  kserve.add("matrices", kind(12, "\n" + head + R"(1,2,2],"datatype":"FP32","data":[[[1,2],[3,4]]]}]})"));
  kserve.add("bools", kind(4, "\n" + head + R"(2],"datatype":"BOOL","data":[true,false]}]})"));
  const std::string binary =
      head + R"(1],"datatype":"INT64","parameters":{"binary_data_size":8}}],"outputs":[{"name":"output",)" +
      R"("parameters":{"binary_data":true}}],"parameters":{"timeout":1000}})";
  kserve.add("binary", kind(1, std::to_string(binary.size()) + "\n" + binary + "01234567"));
}

void serving(const fs::path& root) {
  const Corpus questions(root, "serving_question");
  questions.add("status", std::string(R"({"do":"status"})"));
  questions.add("scale", std::string(R"({"do":"scale","name":"digits","min":1,"max":4})"));
  questions.add("update", std::string(R"({"do":"update","name":"digits","port":8000,"weights":"/a/file"})"));
  questions.add("hand_over", std::string(R"({"do":"hand_over","port":8000})"));
  questions.add("applied", std::string(R"({"do":"applied","config":"program = \"x\""})"));

  const Corpus status(root, "serving_status");
  status.add(
      "program",
      std::string(
          R"({"pid":7,"job":"j","deployments":[{"name":"digits","url":"http://127.0.0.1:8000/v1/digits",)"
          R"("port":8000,"fleet":"1","node":"2"}]})"));

  const Corpus files(root, "serving_file");
  files.add("all", std::string("program = \"build/serve\"\nargs = [\"--data\", \"d\"]\nnum_cpus = 1\n"
                               "[deployments.digits]\nweights = \"w\"\nreplicas = \"1:4\"\nport = 8000\n"
                               "on_every_node = true\nmax_batch = 32\nbatch_wait = 0.5\n"));

  const Corpus curves(root, "training_curve");
  curves.add("run", std::string(R"({"event":"step","epoch":1,"step":1,"steps_per_epoch":9,"loss":2.5})"
                                "\n"
                                R"({"event":"epoch","epoch":1,"metrics":{"test/accuracy":0.5}})"
                                "\n"
                                R"({"event":"fault","rank":1,"why":"x"})"
                                "\n"));
}

}  // namespace
}  // namespace troupe::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_corpus FOLDER\n");
    return 2;
  }
  const std::filesystem::path root = argv[1];
  troupe::fuzz::frames(root);
  troupe::fuzz::messages(root);
  troupe::fuzz::packets(root);
  troupe::fuzz::faults(root);
  troupe::fuzz::rings(root);
  troupe::fuzz::nodes(root);
  troupe::fuzz::batches(root);
  troupe::fuzz::keys(root);
  troupe::fuzz::store_wire(root);
  troupe::fuzz::between_ranks(root);
  troupe::fuzz::rendezvous(root);
  troupe::fuzz::http(root);
  troupe::fuzz::serving(root);
}
