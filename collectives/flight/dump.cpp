#include "collectives/flight/dump.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>

namespace troupe::collectives::flight {
namespace {

constexpr std::string_view kMagic = "troupe-flight 1";
constexpr std::string_view kColumns =
    "columns\tnumber\tsequence\tcall\top\torder\tdtype\tcount\tat\ttag\tstate\tlaunched_ns\ttook_ns\terror";
constexpr std::size_t kFields = 13;
constexpr int kMaxRanks = 1 << 16;
// So that sums of what a file says do not overflow.
constexpr std::uint64_t kMostOperations = std::uint64_t{1} << 62;
constexpr std::int64_t kLatest = std::int64_t{1} << 62;
constexpr std::int64_t kLongest = std::int64_t{1} << 61;

// Writing.

/// One line, of printable characters, not too long.
std::string plain(std::string_view text) {
  std::string line(text.substr(0, kMaxErrorBytes));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

void put(std::string& out, std::string_view field) {
  out += field;
  out += '\t';
}
template <class Number>
requires std::is_integral_v<Number>
void put(std::string& out, Number number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  put(out, std::string_view(digits, static_cast<std::size_t>(end - digits)));
}

void put(std::string& out, const Operation& op) {
  put(out, op.number);
  put(out, op.call.sequence);
  put(out, name_of(op.call.kind));
  put(out, reduce_op_name(op.call.how.op));
  put(out, std::string_view(op.call.how.exact ? "exact" : "any"));
  put(out, dtype_name(op.call.dtype));
  put(out, op.call.count);
  put(out, op.call.peer);
  put(out, op.call.tag);
  put(out, name_of(op.state));
  put(out, op.launched_ns);
  put(out, op.took_ns);
  out += plain(op.error);
  out += '\n';
}

// Reading.

/// Walks the lines of a dump. The first thing that does not hold is kept, and everything after it is ignored.
class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  /// The next line without its end; empty, with an error, at the end of the file.
  std::string_view line() {
    const auto end = text_.find('\n');
    if (end == std::string_view::npos) {
      ++at_;
      fail("the file is cut short");
      text_ = {};
      return {};
    }
    ++at_;
    const auto found = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return found;
  }
  /// The value of the next line, which must be "key value".
  std::string_view value(std::string_view key) {
    const auto found = line();
    if (!found.starts_with(key) || found.size() <= key.size() || found[key.size()] != ' ') {
      fail("it should begin with \"" + std::string(key) + " \"");
      return {};
    }
    return found.substr(key.size() + 1);
  }
  template <class Number>
  Number number(std::string_view text, std::string_view name, Number least = 0,
                Number most = std::numeric_limits<Number>::max()) {
    Number found{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
    if (error != std::errc() || end != text.data() + text.size() || found < least || found > most) {
      fail(std::string(name) + " is not a number from " + std::to_string(least) + " to " +
           std::to_string(most) + ": \"" + plain(text.substr(0, 40)) + "\"");
      return least;
    }
    return found;
  }
  /// The value of an enum whose names are `names`, in order.
  template <class Enum>
  Enum one_of(std::string_view text, std::span<const std::string_view> names, std::string_view name) {
    const auto at = std::find(names.begin(), names.end(), text);
    if (at == names.end()) {
      fail("no " + std::string(name) + " is called \"" + plain(text.substr(0, 40)) + "\"");
      return {};
    }
    return static_cast<Enum>(at - names.begin());
  }
  void fail(std::string why) {
    if (error_.empty()) error_ = "line " + std::to_string(at_) + ": " + std::move(why);
  }
  bool ok() const { return error_.empty(); }
  bool at_end() const { return text_.empty(); }
  bool next_is(std::string_view word) const { return text_.starts_with(word); }
  ErrorInfo error() const {
    return {ErrorCode::kBadInput, "cannot read the flight recorder's dump " + file_, error_,
            "dump that rank again, or leave the file out"};
  }

 private:
  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0;
  std::string error_;
};

Operation read_operation(Reader& in) {
  std::string_view rest = in.line();
  std::array<std::string_view, kFields> field;
  for (std::size_t i = 0; i + 1 < kFields; ++i) {
    const auto tab = rest.find('\t');
    if (tab == std::string_view::npos) {
      in.fail("it has " + std::to_string(i + 1) + " columns and not " + std::to_string(kFields));
      return {};
    }
    field[i] = rest.substr(0, tab);
    rest.remove_prefix(tab + 1);
  }
  Operation op;
  op.number = in.number<std::uint64_t>(field[0], "number", 1);
  op.call.sequence = in.number<std::uint64_t>(field[1], "sequence", 0, op.number);
  op.call.kind = in.one_of<OpKind>(field[2], kOpKindNames, "call");
  op.call.how.op = in.one_of<ReduceOp>(field[3], kReduceOpNames, "reduce operation");
  static constexpr std::array<std::string_view, 2> kOrders{"any", "exact"};
  op.call.how.exact = in.one_of<int>(field[4], kOrders, "order") == 1;
  op.call.dtype = in.one_of<DType>(field[5], kDTypeNames, "dtype");
  op.call.count = in.number<std::uint64_t>(field[6], "count");
  op.call.peer = in.number<std::int32_t>(field[7], "at", std::numeric_limits<std::int32_t>::min());
  op.call.tag = in.number<std::uint32_t>(field[8], "tag");
  op.state = in.one_of<State>(field[9], kStateNames, "state");
  op.launched_ns = in.number<std::int64_t>(field[10], "launched_ns", 0, kLatest);
  op.took_ns = in.number<std::int64_t>(field[11], "took_ns", 0, kLongest);
  op.error = plain(rest);
  return op;
}

Generation read_generation(Reader& in) {
  const auto text = in.value("generation");
  const auto dot = std::min(text.find('.'), text.size());
  const auto counter = dot < text.size() ? text.substr(dot + 1) : std::string_view();
  return {in.number<std::uint32_t>(text.substr(0, dot), "incarnation"),
          in.number<std::uint32_t>(counter, "counter of the generation")};
}

}  // namespace

std::string encode(const Dump& dump) {
  std::string out;
  out.reserve(1024 + dump.operations.size() * 128);
  const auto line = [&](std::string_view key, std::string_view value) {
    out.append(key).append(" ").append(plain(value)).append("\n");
  };
  out.append(kMagic).append("\n");
  line("group", dump.group);
  line("generation", to_string(dump.generation));
  line("backend", dump.backend);
  line("rank", std::to_string(dump.rank));
  line("size", std::to_string(dump.size));
  line("host", dump.host);
  line("pid", std::to_string(dump.pid));
  line("formed_ns", std::to_string(dump.formed_ns));
  line("dumped_ns", std::to_string(dump.dumped_ns));
  line("monotonic_ns", std::to_string(dump.monotonic_ns));
  line("reason", dump.reason);
  line("launched", std::to_string(dump.launched));
  line("collectives", std::to_string(dump.collectives));
  out.append(kColumns).append("\n");
  for (const Operation& op : dump.operations) put(out, op);
  line("end", std::to_string(dump.operations.size()));
  return out;
}

Result<Dump> parse_dump(std::string_view text, const std::string& file) {
  Reader in(text, file);
  if (text.size() > kMaxDumpBytes) {
    in.fail("the file has " + std::to_string(text.size()) + " bytes; the limit is " +
            std::to_string(kMaxDumpBytes));
    return in.error();
  }
  if (in.line() != kMagic) in.fail("it is not \"" + std::string(kMagic) + "\": another format or version");
  Dump dump;
  dump.group = plain(in.value("group"));
  dump.generation = read_generation(in);
  dump.backend = plain(in.value("backend"));
  dump.rank = in.number<int>(in.value("rank"), "rank", 0, kMaxRanks - 1);
  dump.size = in.number<int>(in.value("size"), "size", 1, kMaxRanks);
  if (dump.rank >= dump.size) in.fail("a group of that size does not have that rank");
  dump.host = plain(in.value("host"));
  dump.pid = in.number<int>(in.value("pid"), "pid");
  dump.formed_ns = in.number<std::int64_t>(in.value("formed_ns"), "formed_ns", 0, kLatest);
  dump.dumped_ns = in.number<std::int64_t>(in.value("dumped_ns"), "dumped_ns", 0, kLatest);
  dump.monotonic_ns = in.number<std::int64_t>(in.value("monotonic_ns"), "monotonic_ns", 0, kLatest);
  dump.reason = plain(in.value("reason"));
  dump.launched = in.number<std::uint64_t>(in.value("launched"), "launched", 0, kMostOperations);
  dump.collectives = in.number<std::uint64_t>(in.value("collectives"), "collectives", 0, dump.launched);
  if (in.line() != kColumns) in.fail("the columns are not those of this version");
  std::uint64_t before = 0;
  std::uint64_t collective = 0;
  while (in.ok() && !in.next_is("end ")) {
    Operation op = read_operation(in);
    if (op.number <= before || op.number > dump.launched) in.fail("its number is out of order");
    const bool counts = !is_message(op.call.kind) && op.state != State::kRefused;
    if (counts && (op.call.sequence == 0 || op.call.sequence < collective))
      in.fail("its sequence number is out of order");
    before = op.number;
    if (counts) collective = op.call.sequence;
    dump.operations.push_back(std::move(op));
  }
  const auto told = in.number<std::uint64_t>(in.value("end"), "end");
  if (told != dump.operations.size()) in.fail("operations are missing");
  if (!in.at_end()) in.fail("there is more after it");
  if (!in.ok()) return in.error();
  return dump;
}

}  // namespace troupe::collectives::flight
