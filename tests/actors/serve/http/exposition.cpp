#include "tests/actors/serve/http/exposition.hpp"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "tests/support/files.hpp"

namespace troupe::http {
namespace {

bool is_name(const std::string& text) {
  for (const char c : text) {
    if (std::islower(static_cast<unsigned char>(c)) == 0 &&
        std::isdigit(static_cast<unsigned char>(c)) == 0 && c != '_')
      return false;
  }
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0;
}

bool is_number(const std::string& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

/// `{a="b",c="d"}` from `at` on, which is behind it then. False: it is malformed.
bool read_labels(const std::string& line, std::size_t& at, std::map<std::string, std::string>& labels) {
  if (line[at] != '{') return true;
  do {
    const std::size_t equals = line.find("=\"", ++at);
    if (equals == std::string::npos) return false;
    const std::string name = line.substr(at, equals - at);
    std::string value;
    for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] == '\\' && std::string("\\\"n").find(line[++at]) == std::string::npos) return false;
      value += line[at];
    }
    if (at >= line.size() || !is_name(name) || !labels.emplace(name, value).second) return false;
    ++at;
  } while (line[at] == ',');
  return line[at++] == '}';
}

class Reader {
 public:
  std::string read(const std::string& text) {
    if (text.empty() || text.back() != '\n') wrong("the page does not end with a line's end");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) read_line(line);
    end_family();
    return problems_;
  }

 private:
  using Labels = std::map<std::string, std::string>;
  struct Buckets {
    double last_bound = -std::numeric_limits<double>::infinity();
    double last_count = 0, count = -1;
    bool has_sum = false;
  };

  void wrong(const std::string& what) { problems_ += what + "\n"; }

  void read_line(const std::string& line) {
    if (line.starts_with("# HELP ")) return begin_family(line);
    if (line.starts_with("# TYPE ")) {
      const std::size_t space = line.find(' ', 7);
      if (line.substr(7, space - 7) != family_ || !kind_.empty()) wrong("no HELP before: " + line);
      kind_ = space == std::string::npos ? "" : line.substr(space + 1);
      const bool counts = family_.ends_with("_total");
      if (kind_ != "counter" && kind_ != "gauge" && kind_ != "histogram") wrong("no kind: " + line);
      if ((kind_ == "counter") != counts) wrong("_total is of counters, and of all of them: " + line);
      return;
    }
    read_sample(line);
  }

  void begin_family(const std::string& line) {
    end_family();
    const std::size_t space = line.find(' ', 7);
    family_ = line.substr(7, space - 7);
    if (space == std::string::npos || space + 1 == line.size()) wrong("no help: " + line);
    if (!is_name(family_) || !family_.starts_with("troupe_")) wrong("no name of ours: " + line);
    if (!families_.insert(family_).second) wrong("it comes twice: " + line);
    std::istringstream words(family_);
    for (std::string word; std::getline(words, word, '_');) {
      static const std::set<std::string> kOther{
          "ms",    "us",   "ns",      "milliseconds", "microseconds", "nanoseconds", "minutes",
          "hours", "days", "kb",      "mb",           "gb",           "kilobytes",   "megabytes",
          "kib",   "mib",  "percent", "count",        "sum",          "bucket"};
      if (kOther.contains(word)) wrong("'" + word + "' is no base unit: " + line);
    }
  }

  void read_sample(const std::string& line) {
    std::size_t at = line.find_first_of("{ ");
    Labels labels;
    double value = 0;
    if (at == std::string::npos || !read_labels(line, at, labels) || line[at] != ' ' ||
        !is_number(line.substr(at + 1), value))
      return wrong("no sample: " + line);
    const std::string name = line.substr(0, line.find_first_of("{ "));
    if (!series_.insert(line.substr(0, at)).second) wrong("it comes twice: " + line);
    if (kind_.empty()) return wrong("no TYPE before: " + line);
    if (kind_ != "histogram") {
      if (name != family_) wrong("it is not of " + family_ + ": " + line);
      if (kind_ == "counter" && !(value >= 0)) wrong("a counter below 0: " + line);
      return;
    }
    const std::string bound = labels["le"];
    labels.erase("le");
    Buckets& buckets = histograms_[labels];
    if (name == family_ + "_sum") {
      buckets.has_sum = true;
    } else if (name == family_ + "_count") {
      buckets.count = value;
    } else if (double upper = 0; name == family_ + "_bucket" && is_number(bound, upper)) {
      if (!(upper > buckets.last_bound) || value < buckets.last_count)
        wrong("a bucket is out of order: " + line);
      buckets.last_bound = upper;
      buckets.last_count = value;
    } else {
      wrong("it is not of the histogram " + family_ + ": " + line);
    }
  }

  void end_family() {
    for (const auto& [labels, buckets] : histograms_) {
      if (buckets.last_bound != std::numeric_limits<double>::infinity() || !buckets.has_sum ||
          buckets.count != buckets.last_count)
        wrong("the histogram " + family_ + " is not whole");
    }
    histograms_.clear();
    kind_.clear();
  }

  std::string problems_;
  std::string family_, kind_;
  std::set<std::string> families_, series_;
  std::map<Labels, Buckets> histograms_;
};

}  // namespace

std::string problems_of_exposition(const std::string& text) {
  return Reader().read(text);
}

std::string promtool_on(const std::string& text) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) return "";
  const test::TempFolder folder;
  std::ofstream(folder / "page") << text;
  const int status = std::system(
      ("promtool check metrics <" + (folder / "page") + " >" + (folder / "said") + " 2>&1").c_str());
  const std::string said = test::read_file(folder / "said");
  return status == 0 && said.empty() ? "" : "promtool: " + said;
}

}  // namespace troupe::http
