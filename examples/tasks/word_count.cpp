// The most frequent words of some files: a task a file counts, further tasks add up what those found.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <troupe/session.hpp>

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

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv, {.nodes = 2});
  if (argc < 2) return std::printf("usage: word_count FILES...\n"), 2;
  const auto ignored = session.put(Words{"a", "and", "in", "is", "it", "of", "that", "the", "to"});

  std::vector<troupe::Future<Counts>> parts;
  for (int i = 1; i < argc; ++i) parts.push_back(session.submit<&count>(argv[i], ignored));
  for (std::size_t at = 0; at + 1 < parts.size(); at += 2)  // pairs, then pairs of pairs
    parts.push_back(session.submit<&add>(parts[at].get(), parts[at + 1].get()));

  std::vector<std::pair<std::uint64_t, std::string>> top;
  for (const auto& [word, number] : parts.back().get()) top.emplace_back(number, word);
  std::sort(top.rbegin(), top.rend());
  top.resize(std::min<std::size_t>(top.size(), 5));
  for (const auto& [number, word] : top)
    std::printf("%7llu %s\n", static_cast<unsigned long long>(number), word.c_str());
}
