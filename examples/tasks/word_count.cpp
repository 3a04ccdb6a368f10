// The most frequent words of some files: a task a file counts, further tasks add up what those found.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <troupe/session.hpp>
#include <vector>

using Counts = std::map<std::string, std::uint64_t>;
using Words = std::set<std::string>;

Counts count(const std::string& path, const Words& ignored) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  Counts counts;
  std::string word;
  for (int c = file.get();; c = file.get()) {
    if (c != EOF && std::isalpha(c)) {
      word += static_cast<char>(std::tolower(c));
      continue;
    }
    if (!word.empty() && !ignored.contains(word)) ++counts[word];
    word.clear();
    if (c == EOF) return counts;
  }
}

Counts add(Counts left, const Counts& right) {
  for (const auto& [word, number] : right) left[word] += number;
  return left;
}

int main(int argc, char** argv) try {
  auto session = troupe::init(argc, argv, {.nodes = 2});  // takes --address HOST:PORT
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--address") ++i;
    if (!word.starts_with("--address")) files.push_back(word);
  }
  if (files.empty()) return std::fprintf(stderr, "usage: word_count [--address HOST:PORT] FILES...\n"), 2;
  const auto ignored = session.put(Words{"a", "and", "in", "is", "it", "of", "that", "the", "to"});

  std::vector<troupe::Future<Counts>> parts;
  for (const std::string& file : files) parts.push_back(session.submit<&count>(file, ignored));
  for (std::size_t at = 0; at + 1 < parts.size(); at += 2)  // pairs, then pairs of pairs
    parts.push_back(session.submit<&add>(parts[at].get(), parts[at + 1].get()));

  std::vector<std::pair<std::uint64_t, std::string>> top;
  for (const auto& [word, number] : parts.back().get()) top.emplace_back(number, word);
  std::sort(top.rbegin(), top.rend());
  top.resize(std::min<std::size_t>(top.size(), 5));
  for (const auto& [number, word] : top)
    std::printf("%7llu %s\n", static_cast<unsigned long long>(number), word.c_str());
} catch (const std::exception& error) {  // a file that cannot be read, a cluster that does not let us in
  std::fprintf(stderr, "word_count: %s\n", error.what());
  return 1;
}
