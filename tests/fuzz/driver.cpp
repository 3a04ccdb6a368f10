// Every target over its corpus and over seeded changes of it, for a short while each, in any build:
//   test_fuzz [--seconds S] [--seed N] [--target NAME] [FILE...]
// With FILEs (of one target) it runs those alone. An input that ends the process is left in a file, whose
// name is said.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/fuzz/allocations.hpp"
#include "tests/fuzz/mutate.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {
namespace {

namespace fs = std::filesystem;

struct Options {
  double seconds = 1;  ///< of each target
  std::uint64_t seed = 1;
  std::string target;  ///< empty: all
  std::vector<std::string> files;
};

/// What runs now, for the handler of signals.
const Input* running = nullptr;
char crash_file[256] = "";

void say(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

/// Only what a handler of signals may call.
void on_crash(int signal) {
  const int fd = ::open(crash_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool kept = fd >= 0 && running != nullptr &&
                    ::write(fd, running->data(), running->size()) == static_cast<ssize_t>(running->size());
  say(kept ? "fuzz: this input ended the process: "
           : "fuzz: an input ended the process and could not be kept: ");
  say(crash_file);
  say("\n");
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

/// What a decoder may hold for each byte of its input: an empty string of 32 bytes travels as 4.
constexpr std::size_t kBytesPerByte = 64;

bool run_one(const Target& target, const Input& input) {
  running = &input;
  mark_allocations();
  const bool accepted = target.run(input);
  check(most_allocated() <= target.fixed_bytes + kBytesPerByte * input.size(),
        "a decoder allocates no more than its bytes justify");
  stop_counting();
  running = nullptr;
  return accepted;
}

Input read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) {
    std::fprintf(stderr, "fuzz: cannot read %s\n", path.c_str());
    std::exit(2);
  }
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// The corpus, replayed. What stands in it as `ok-*` was written by an encoder: a decoder that refuses it, or
/// a corpus that is older than the encoder, is a failure.
std::vector<Input> replay_corpus(const Target& target) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(fs::path(TROUPE_FUZZ_CORPUS) / target.name))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());  // the same order on every machine
  std::vector<Input> corpus;
  for (const fs::path& path : paths) {
    corpus.push_back(read_file(path));
    const bool accepted = run_one(target, corpus.back());
    if (!accepted && path.filename().string().starts_with("ok-")) {
      std::fprintf(stderr,
                   "fuzz: %s is refused. If a layout changed on purpose, make the corpus anew: fuzz_corpus "
                   "tests/fuzz/corpus\n",
                   path.c_str());
      std::exit(1);
    }
  }
  check(!corpus.empty(), "every target has a corpus");
  return corpus;
}

void fuzz(const Target& target, const Options& options) {
  std::snprintf(crash_file, sizeof crash_file, "crash-%.*s-seed-%llu", static_cast<int>(target.name.size()),
                target.name.data(), static_cast<unsigned long long>(options.seed));
  if (!options.files.empty()) {
    for (const auto& file : options.files)
      std::printf("%s: %s\n", file.c_str(), run_one(target, read_file(file)) ? "accepted" : "refused");
    return;
  }
  (void)target.run({});  // what is made once is not the first input's
  const std::vector<Input> corpus = replay_corpus(target);
  SeededRandom random(options.seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  std::uint64_t runs = 0, accepted = 0;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    accepted += run_one(
        target, mutate(corpus[random.below(corpus.size())], corpus[random.below(corpus.size())], random));
  }
  std::printf("%-20.*s %4zu in the corpus, %9llu changed, of which %llu were accepted\n",
              static_cast<int>(target.name.size()), target.name.data(), corpus.size(),
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(accepted));
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      options.files.push_back(word);
      continue;
    }
    if (++i == argc) return false;
    const std::string value = argv[i];
    if (word == "--target") {
      options.target = value;
    } else if (word == "--seconds") {
      if (std::from_chars(value.data(), value.data() + value.size(), options.seconds).ec != std::errc())
        return false;
    } else if (word == "--seed") {
      if (std::from_chars(value.data(), value.data() + value.size(), options.seed).ec != std::errc())
        return false;
    } else {
      return false;
    }
  }
  return options.files.empty() || !options.target.empty();
}

}  // namespace
}  // namespace troupe::fuzz

int main(int argc, char** argv) {
  using namespace troupe::fuzz;
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: test_fuzz [--seconds S] [--seed N] [--target NAME [FILE...]]\n");
    return 2;
  }
  on_decoded = stop_counting;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::signal(signal, on_crash);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("seed %llu, %g s each\n", static_cast<unsigned long long>(options.seed), options.seconds);
  bool found = false;
  for (const Target& target : kTargets) {
    if (!options.target.empty() && options.target != target.name) continue;
    found = true;
    fuzz(target, options);
  }
  if (!found) std::fprintf(stderr, "fuzz: no target %s\n", options.target.c_str());
  return found ? 0 : 2;
}
