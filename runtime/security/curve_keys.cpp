#include "runtime/security/curve_keys.hpp"

#include <fcntl.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>

#include "runtime/core/byte_codec.hpp"

namespace troupe {

namespace {

static_assert(PublicKey::kSize == crypto_box_PUBLICKEYBYTES && SecretKey::kSize == crypto_box_SECRETKEYBYTES);

constexpr std::string_view kBundleMagic = "TKB1";
constexpr std::size_t kZ85KeyChars = 40;
constexpr std::size_t kMaxBundleBytes = 4 + 32 + 32 + 4 + kMaxBundlePeers * (32 + 1 + kMaxPeerNameBytes);
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

ErrorInfo bad_bundle(std::string why) {
  return {ErrorCode::kBadInput, "cannot read the keys handed over by the parent process", std::move(why),
          "parent and child must be the same build of troupe"};
}

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

PublicKey PublicKey::from(std::span<const std::byte, kSize> bytes) {
  PublicKey key;
  std::copy(bytes.begin(), bytes.end(), key.bytes.begin());
  return key;
}

std::string to_string(const PublicKey& key) {
  std::array<char, kZ85KeyChars + 1> text{};
  zmq_z85_encode(text.data(), raw(key.bytes), key.bytes.size());
  return text.data();
}

Result<PublicKey> parse_public_key(std::string_view text) {
  const ErrorInfo bad{ErrorCode::kBadInput, "cannot read a public key",
                      "it is not 40 characters of Z85 (32 bytes)", "copy it again from where it was printed"};
  if (text.size() != kZ85KeyChars) return bad;
  // libzmq's decoder indexes a table of 96 printable characters; others must not reach it.
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; })) return bad;
  PublicKey key;
  const std::string terminated(text);
  if (zmq_z85_decode(reinterpret_cast<std::uint8_t*>(key.bytes.data()), terminated.c_str()) == nullptr) {
    return bad;
  }
  // Z85 has several texts for no key at all (groups above 2^32 wrap around); only the canonical one counts.
  if (to_string(key) != terminated) return bad;
  return key;
}

CurveKeyPair CurveKeyPair::generate() {
  return from_secret(SecretKey::generate());
}

CurveKeyPair CurveKeyPair::from_secret(const SecretKey& secret) {
  PublicKey key;
  crypto_scalarmult_base(reinterpret_cast<unsigned char*>(key.bytes.data()), raw(secret.reveal()));
  return {key, secret};
}

Result<UniqueFd> hand_over(const KeyBundle& bundle) {
  TROUPE_ASSERT(bundle.allowed.size() <= kMaxBundlePeers, "too many peers for a key bundle");
  std::vector<std::byte> bytes;
  bytes.reserve(kMaxBundleBytes);  // no reallocation leaves a copy of the secret behind
  ByteWriter writer(bytes);
  writer.write(kBundleMagic).write(bundle.own.secret_key().reveal()).write(bundle.head.bytes);
  writer.write(static_cast<std::uint32_t>(bundle.allowed.size()));
  for (const AllowedPeer& peer : bundle.allowed) {
    TROUPE_ASSERT(!peer.name.empty() && peer.name.size() <= kMaxPeerNameBytes,
                  "a peer name of no valid size");
    writer.write(peer.key.bytes).write(static_cast<std::uint8_t>(peer.name.size())).write(peer.name);
  }

  UniqueFd fd(::memfd_create("troupe-keys", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool written =
      fd && ::write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  const int saved_errno = errno;
  wipe(bytes);
  if (!written) return io_error("cannot hand keys to a child process", saved_errno, "free memory");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return io_error("cannot seal the keys of a child", errno);
  return fd;
}

Result<KeyBundle> take_over(UniqueFd fd) {
  if ((::fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals)
    return bad_bundle("it is not a sealed memory file");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return io_error("cannot read the keys of the parent", errno);
  if (info.st_size <= 0 || static_cast<std::size_t>(info.st_size) > kMaxBundleBytes) {
    return bad_bundle("it has " + std::to_string(info.st_size) + " bytes");
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.st_size));
  const bool whole = ::pread(fd.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
  auto bundle =
      whole ? decode_key_bundle(bytes) : Result<KeyBundle>(bad_bundle("it could not be read whole"));
  wipe(bytes);
  return bundle;
}

Result<KeyBundle> decode_key_bundle(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  std::string magic;
  SecretKey secret;
  PublicKey head;
  std::uint32_t count = 0;
  if (!reader.read(magic, kBundleMagic.size()) || magic != kBundleMagic) return bad_bundle("wrong magic");
  if (!reader.read(secret.reveal_for_writing()) || !reader.read(head.bytes) || !reader.read(count)) {
    return bad_bundle("it is too short");
  }
  if (count > kMaxBundlePeers) return bad_bundle("it names " + std::to_string(count) + " peers");
  KeyBundle bundle{CurveKeyPair::from_secret(secret), head, {}};
  for (std::uint32_t i = 0; i < count; ++i) {
    AllowedPeer peer;
    std::uint8_t chars = 0;
    if (!reader.read(peer.key.bytes) || !reader.read(chars) || chars == 0 || chars > kMaxPeerNameBytes ||
        !reader.read(peer.name, chars)) {
      return bad_bundle("peer " + std::to_string(i) + " is cut off or has no valid name");
    }
    bundle.allowed.push_back(std::move(peer));
  }
  if (!reader.done()) return bad_bundle("it has bytes after its end");
  return bundle;
}

}  // namespace troupe
