// Keys and tokens: what people paste, what a parent hands over, what lies in folders.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "runtime/core/endpoint.hpp"
#include "runtime/core/storage.hpp"
#include "runtime/security/admission.hpp"
#include "runtime/security/authorizer.hpp"
#include "runtime/security/curve_keys.hpp"
#include "runtime/security/join_token.hpp"
#include "runtime/security/key_folder.hpp"
#include "scheduler/init/cluster_folder.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {
namespace {

/// A folder in memory that goes with the process.
class Folder {
 public:
  Folder() {
    char path[] = "/dev/shm/troupe-fuzz-XXXXXX";
    check(::mkdtemp(path) != nullptr, "there is room for a folder in /dev/shm");
    path_ = path;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

  void write(const std::string& name, std::span<const std::byte> bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    ::chmod(path.c_str(), 0600);
  }

 private:
  std::string path_;
};

}  // namespace

bool endpoint(std::span<const std::byte> bytes) {
  const auto endpoint = parse_endpoint(text_of(bytes));
  if (!endpoint) return false;
  const auto again = parse_endpoint(to_string(*endpoint));
  check(again.ok() && *again == *endpoint, "an endpoint that was parsed is the same after it was printed");
  return true;
}

bool public_key(std::span<const std::byte> bytes) {
  const auto key = parse_public_key(text_of(bytes));
  if (!key) return false;
  check(to_string(*key) == text_of(bytes), "a key has one text");
  return true;
}

bool join_token(std::span<const std::byte> bytes) {
  const auto token = read_join_token(text_of(bytes));
  if (!token) return false;
  check(write_join_token(*token) == text_of(bytes), "a token has one text");
  return true;
}

bool key_bundle(std::span<const std::byte> bytes) {
  const auto bundle = decode_key_bundle(bytes);
  if (!bundle) return false;
  decoded();  // hand_over makes room for the longest bundle
  check(bundle->allowed.size() <= kMaxBundlePeers, "a bundle keeps the limit of its peers");
  const auto again = take_over(hand_over(*bundle).value());
  check(again.ok() && again->head == bundle->head && again->allowed == bundle->allowed &&
            again->own.public_key() == bundle->own.public_key(),
        "a bundle that was decoded is the same after it was handed over");
  return true;
}

/// The file of a secret key.
bool key_folder(std::span<const std::byte> bytes) {
  static const Folder folder;
  folder.write("fuzz.key", bytes);
  const auto keys = KeyFolder::open(folder.path());
  check(keys.ok(), "a key folder opens");
  return keys->load_or_generate("fuzz").ok();
}

/// The file that says where the head is.
bool cluster_folder(std::span<const std::byte> bytes) {
  static const Folder parent;
  static const ClusterFolder folder = [] {
    auto opened = ClusterFolder::open(parent.path() + "/cluster").value();
    opened.save_head({"10.0.0.1", 7000}, CurveKeyPair::generate().public_key()).value();
    return opened;
  }();
  std::ofstream(folder.path() + "/address", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return folder.contact().ok();
}

/// An entry of the head's register of who may come in. The first byte says of which kind, and how long its
/// key is.
bool admission_register(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  const unsigned first = static_cast<unsigned>(bytes[0]);
  bytes = bytes.subspan(1);
  const auto key = text_of(bytes.first(std::min<std::size_t>(first >> 1, bytes.size())));
  MemoryStorage storage;
  // A key may be too long for a store: then there is nothing to read.
  if (!storage.put(((first & 1) != 0 ? "security/peer/" : "security/token/") + std::string(key),
                   bytes.subspan(key.size()))) {
    return false;
  }
  const MonotonicClock clock;
  return Admission::open(storage, std::make_shared<Authorizer>(clock), clock, "boot").ok();
}

}  // namespace troupe::fuzz
