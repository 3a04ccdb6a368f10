#include "runtime/security/key_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "runtime/core/byte_codec.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/core/random.hpp"
#include "runtime/security/check_word.hpp"

namespace troupe {

namespace {

constexpr std::string_view kMagic = "troupe key 2\n";
constexpr std::string_view kUncheckedMagic = "troupe key 1\n";  ///< older files have no check word
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kCheckBytes = sizeof(CheckWord);
constexpr std::size_t kMaxRoleChars = 32;

Result<void> check_role(const std::string& role) {
  const bool fine =
      !role.empty() && role.size() <= kMaxRoleChars && std::all_of(role.begin(), role.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
      });
  if (fine) return {};
  return ErrorInfo{ErrorCode::kBadConfig, "cannot use a key of that role",
                   "a role has 1 to 32 of the characters a to z, 0 to 9 and -", ""};
}

/// The rule for the folder and for each file in it.
Result<void> check_private(const struct stat& info, const std::string& path, const char* mode) {
  if (info.st_uid != ::geteuid()) {
    return ErrorInfo{ErrorCode::kRefused, "refused the keys in " + path,
                     "it belongs to user " + std::to_string(info.st_uid) + " and this process runs as " +
                         std::to_string(::geteuid()),
                     "run as its owner, or choose another folder"};
  }
  if ((info.st_mode & 077) != 0) {
    return ErrorInfo{ErrorCode::kRefused, "refused the keys in " + path,
                     "others may read or change it, so keys there are no longer secret",
                     "chmod " + std::string(mode) + " " + path +
                         ", and delete the keys first unless nobody else ever had access to them"};
  }
  return {};
}

/// Deletes a temporary file unless it got its final name.
class TemporaryFile {
 public:
  TemporaryFile(int folder, std::string name) : folder_(folder), name_(std::move(name)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!name_.empty()) ::unlinkat(folder_, name_.c_str(), 0);
  }
  const char* name() const { return name_.c_str(); }
  void keep() { name_.clear(); }

 private:
  int folder_;
  std::string name_;
};

std::vector<std::byte> encode_key(std::span<const std::byte> key) {
  std::vector<std::byte> bytes;
  bytes.reserve(kMagic.size() + key.size() + kCheckBytes);  // no reallocation leaves a copy behind
  ByteWriter(bytes).write(kMagic).write(key).write(check_word({}, key));
  return bytes;
}

/// What it costs to do without the key of that file, whose name is of our making.
std::string advice_on_spoilt(std::string_view name) {
  if (name == "head.key")
    return "restore it from a copy; or delete it: the next troupe start --head makes another one, jobs and "
           "queues stay, and every other machine must join again with a new token (troupe token)";
  if (name == "head.pub")
    return "restore it from a copy; or delete it: the head's next start writes it in its own folder, and "
           "another machine joins again with a new token (troupe token)";
  return "restore it from a copy; or delete it: another one is made, for which the head's own folder needs a "
         "restart (troupe stop, troupe start --head), and another machine a new token (troupe token)";
}

Result<SecretKey> decode_key(std::span<const std::byte> bytes, const std::string& folder,
                             const std::string& name) {
  const auto spoilt = [&](const char* why) {
    return ErrorInfo{ErrorCode::kCorrupt, "cannot use the key " + folder + "/" + name, why,
                     advice_on_spoilt(name)};
  };
  ByteReader reader(bytes);
  std::string magic;
  SecretKey key;
  CheckWord word{};
  const bool is_key = reader.read(magic, kMagic.size()) && (magic == kMagic || magic == kUncheckedMagic) &&
                      reader.read(key.reveal_for_writing()) && (magic != kMagic || reader.read(word)) &&
                      reader.done();
  if (!is_key) return spoilt("it is not a key file of this version");
  if (magic == kMagic && word != check_word({}, key.reveal()))
    return spoilt("it is damaged: its check word is that of another key");
  return key;
}

std::string advice_on_folder(int error) {
  if (error == EACCES || error == EPERM)
    return "it is another user's: be that one, or give a folder of your own (--folder or TROUPE_FOLDER)";
  if (error == EMFILE || error == ENFILE) return "raise ulimit -n";
  return "give a folder, not a link or a file";
}

}  // namespace

Result<KeyFolder> KeyFolder::open(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const bool is_missing = errno == ENOENT || errno == ENOTDIR;
    return io_error(
        "cannot create the key folder " + path, errno,
        is_missing ? "make its parent"
                   : "make its parent writable, or give a folder of your own (--folder or TROUPE_FOLDER)");
  }
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder) return io_error("cannot open the key folder " + path, errno, advice_on_folder(errno));
  struct stat info {};
  if (::fstat(folder.get(), &info) != 0) return io_error("cannot open the key folder " + path, errno);
  if (auto safe = check_private(info, path, "700"); !safe) return safe.error();
  return KeyFolder(std::move(folder), path);
}

Result<std::optional<std::vector<std::byte>>> KeyFolder::read(const std::string& name) const {
  using Found = std::optional<std::vector<std::byte>>;
  const std::string path = path_ + "/" + name;
  const UniqueFd fd(::openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return Found();
  if (!fd) return io_error("cannot open the key " + path, errno, "it must be a file, not a link");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return io_error("cannot read the key " + path, errno);
  if (auto safe = check_private(info, path, "600"); !safe) return safe.error();
  // One byte more than a key has, so that a longer file does not pass for one.
  std::vector<std::byte> bytes(kMagic.size() + kKeyBytes + kCheckBytes + 1);
  const ssize_t got = ::read(fd.get(), bytes.data(), bytes.size());
  if (got < 0) return io_error("cannot read the key " + path, errno);
  bytes.resize(static_cast<std::size_t>(got));
  return Found(std::move(bytes));
}

Result<bool> KeyFolder::write(const std::string& name, std::span<const std::byte> bytes, bool replace) const {
  const std::string path = path_ + "/" + name;
  const std::string todo = "make room, and the folder writable";
  TemporaryFile temporary(folder_.get(), "." + name + "." + to_hex(SystemRandom().next()));
  const UniqueFd fd(
      ::openat(folder_.get(), temporary.name(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return io_error("cannot create the key " + path, errno, todo);
  const ssize_t written = ::write(fd.get(), bytes.data(), bytes.size());
  if (written != static_cast<ssize_t>(bytes.size())) {
    return io_error("cannot write the key " + path, written < 0 ? errno : ENOSPC, todo);
  }
  if (::fsync(fd.get()) != 0) return io_error("cannot write the key " + path, errno, todo);
  const unsigned flags = replace ? 0 : RENAME_NOREPLACE;
  if (::renameat2(folder_.get(), temporary.name(), folder_.get(), name.c_str(), flags) != 0) {
    if (errno == EEXIST) return false;
    return io_error("cannot name the key " + path, errno, todo);
  }
  temporary.keep();
  if (::fsync(folder_.get()) != 0) return io_error("cannot write the key " + path, errno, todo);
  return true;
}

Result<std::optional<CurveKeyPair>> KeyFolder::load(const std::string& role) const {
  if (auto named = check_role(role); !named) return named.error();
  auto bytes = read(role + ".key");
  if (!bytes) return bytes.error();
  if (!*bytes) return std::optional<CurveKeyPair>();
  const auto key = decode_key(**bytes, path_, role + ".key");
  wipe(**bytes);
  if (!key) return key.error();
  return std::optional(CurveKeyPair::from_secret(*key));
}

Result<CurveKeyPair> KeyFolder::load_or_generate(const std::string& role) const {
  auto existing = load(role);
  if (!existing) return existing.error();
  if (*existing) return **existing;
  const CurveKeyPair fresh = CurveKeyPair::generate();
  auto bytes = encode_key(fresh.secret_key().reveal());
  const auto ours = write(role + ".key", bytes, false);
  wipe(bytes);
  if (!ours) return ours.error();
  if (*ours) return fresh;
  // Another process was first; its key is the role's.
  auto theirs = load(role);
  if (!theirs) return theirs.error();
  if (*theirs) return **theirs;
  return ErrorInfo{ErrorCode::kIo, "cannot generate the key of " + role, "another process deletes it", ""};
}

Result<void> KeyFolder::save_public(const std::string& role, const PublicKey& key) const {
  if (auto named = check_role(role); !named) return named;
  const auto known = load_public(role);
  if (known && *known && **known == key) return {};
  const auto written = write(role + ".pub", encode_key(key.bytes), true);
  if (!written) return written.error();
  return {};
}

Result<std::optional<PublicKey>> KeyFolder::load_public(const std::string& role) const {
  if (auto named = check_role(role); !named) return named.error();
  const auto bytes = read(role + ".pub");
  if (!bytes) return bytes.error();
  if (!*bytes) return std::optional<PublicKey>();
  const auto key = decode_key(**bytes, path_, role + ".pub");
  if (!key) return key.error();
  return std::optional(PublicKey::from(key->reveal()));
}

}  // namespace troupe
