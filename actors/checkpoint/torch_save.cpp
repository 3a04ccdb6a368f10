#include "actors/checkpoint/torch_save.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/core/escape.hpp"

namespace troupe::checkpoint {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kLongestWhy = 1000;  ///< it may have names out of the file

/// Caught in read_torch_save.
struct Corrupt final : std::exception {
  explicit Corrupt(std::string text) : why(std::move(text)) {}
  std::string why;
};

/// A little-endian number of `size` bytes.
std::uint64_t number_at(Bytes bytes, std::uint64_t at, std::size_t size) {
  if (at > bytes.size() || bytes.size() - at < size) throw Corrupt("it ends early");
  std::uint64_t number = 0;
  for (std::size_t i = size; i-- > 0;) number = number << 8 | static_cast<std::uint64_t>(bytes[at + i]);
  return number;
}

Bytes part_of(Bytes bytes, std::uint64_t at, std::uint64_t size) {
  if (at > bytes.size() || bytes.size() - at < size) throw Corrupt("it ends early");
  return bytes.subspan(at, size);
}

std::string text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The archive.

constexpr std::uint64_t kEndOfDirectory = 0x06054b50, kEntry = 0x02014b50, kMember = 0x04034b50;
constexpr std::uint64_t kLocator64 = 0x07064b50, kEndOfDirectory64 = 0x06064b50;
constexpr std::uint64_t kSee64 = 0xffffffff;

struct Directory {
  std::uint64_t entries = 0, begin = 0;
};

Directory find_directory(Bytes file) {
  constexpr std::uint64_t kEndBytes = 22, kLocatorBytes = 20, kMostComment = 0xffff;
  const std::uint64_t last = file.size() < kEndBytes ? 0 : file.size() - kEndBytes;
  for (std::uint64_t at = last + 1; file.size() >= kEndBytes && at-- > last - std::min(last, kMostComment);) {
    if (number_at(file, at, 4) != kEndOfDirectory) continue;
    Directory found{number_at(file, at + 10, 2), number_at(file, at + 16, 4)};
    if (at >= kLocatorBytes && number_at(file, at - kLocatorBytes, 4) == kLocator64) {
      const std::uint64_t end = number_at(file, at - kLocatorBytes + 8, 8);
      if (number_at(file, end, 4) != kEndOfDirectory64) throw Corrupt("its directory has no end");
      found = {number_at(file, end + 32, 8), number_at(file, end + 48, 8)};
    }
    return found;
  }
  throw Corrupt("it is no zip archive, or not all of one");
}

/// As the directory says; 0: torch.save was told to compute none (set_crc32_options).
void check_crc(const std::string& name, Bytes bytes, std::uint64_t said) {
  if (said != 0 && ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) != said)
    throw Corrupt("its member " + name +
                  " is damaged: it has not the checksum (CRC-32) that it was written with");
}

/// Members by the name behind the first '/'.
std::map<std::string, Bytes> members_of(Bytes file) {
  const Directory directory = find_directory(file);
  std::map<std::string, Bytes> members;
  std::uint64_t at = directory.begin, all_bytes = 0;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (number_at(file, at, 4) != kEntry) throw Corrupt("its directory has other entries than it says");
    const std::uint64_t name_bytes = number_at(file, at + 28, 2), extra_bytes = number_at(file, at + 30, 2);
    const std::string full = text_of(part_of(file, at + 46, name_bytes));
    const std::string name = full.substr(full.find('/') + 1);
    const std::string shown = shown_name(name);
    if (number_at(file, at + 10, 2) != 0) throw Corrupt("its member " + shown + " is compressed");
    std::uint64_t size = number_at(file, at + 24, 4), place = number_at(file, at + 42, 4);
    const std::uint64_t stored = number_at(file, at + 20, 4);
    const Bytes extra = part_of(file, at + 46 + name_bytes, extra_bytes);
    for (std::uint64_t e = 0; e + 4 <= extra.size();) {
      const std::uint64_t id = number_at(extra, e, 2), length = number_at(extra, e + 2, 2);
      std::uint64_t field = e + 4;
      if (id == 1) {  // numbers of 64 bits, of those that do not fit
        if (size == kSee64) size = number_at(extra, std::exchange(field, field + 8), 8);
        if (stored == kSee64) field += 8;
        if (place == kSee64) place = number_at(extra, field, 8);
      }
      e += 4 + length;
    }
    if (number_at(file, place, 4) != kMember) throw Corrupt("its member " + shown + " is not where it says");
    const std::uint64_t begin = place + 30 + number_at(file, place + 26, 2) + number_at(file, place + 28, 2);
    const Bytes bytes = part_of(file, begin, size);
    all_bytes += size;
    if (all_bytes > file.size()) throw Corrupt("its members lie in one another");  // all are read
    check_crc(shown, bytes, number_at(file, at + 16, 4));
    members.emplace(name, bytes);
    at += 46 + name_bytes + extra_bytes + number_at(file, at + 32, 2);
  }
  return members;
}

// The pickle.

// A few bytes of a file can say to make or copy what is large, as often as they are there.
constexpr std::size_t kMostOnStack = std::size_t{1} << 20;
constexpr std::size_t kMostMarks = 10'000;  ///< Python's recursion ends earlier
constexpr std::size_t kMostDimensions = 64;
constexpr std::uint64_t kAlwaysCopied = std::uint64_t{64}
                                        << 20;  ///< bytes of names and shapes, or of elements
constexpr std::uint64_t kCopiedTimes = 64;      ///< and so many times the pickle, or the file

struct Value;
using Values = std::vector<Value>;

struct Storage {
  std::string type, key;
};
struct Tensor {
  Storage storage;
  std::uint64_t offset = 0;
  std::vector<std::int64_t> sizes, strides;
};

/// What the pickle makes. Copies share what a list or a dict has, as in Python.
struct Value {
  enum class Kind { kOther, kNumber, kText, kGlobal, kList, kDict, kStorage, kTensor, kMark };
  Kind kind = Kind::kOther;
  std::int64_t number = 0;
  std::string text;               ///< of a global: "module name"
  std::shared_ptr<Values> items;  ///< of a dict: key, value, key, value
  std::shared_ptr<Tensor> tensor;

  static Value of(Kind kind) {
    Value value;
    value.kind = kind;
    return value;
  }
  static Value of(std::int64_t number) {
    Value value = of(Kind::kNumber);
    value.number = number;
    return value;
  }
  static Value of(Kind kind, std::string text) {
    Value value = of(kind);
    value.text = std::move(text);
    return value;
  }
};
using Kind = Value::Kind;

const Value& item(const Value& list, std::size_t i, Kind kind) {
  if (list.kind != Kind::kList || i >= list.items->size() || (*list.items)[i].kind != kind)
    throw Corrupt("it makes a tensor of something else");
  return (*list.items)[i];
}

std::vector<std::int64_t> counts_of(const Value& list) {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < list.items->size(); ++i) {
    counts.push_back(item(list, i, Kind::kNumber).number);
    if (counts.back() < 0) throw Corrupt("it makes a tensor with a negative extent or stride");
  }
  return counts;
}

/// Python's virtual machine for pickles, as far as torch.save needs it.
class Pickle {
 public:
  explicit Pickle(Bytes code) : code_(code) {}
  /// Lists may have lists without end, or themselves: they end one by one, not one in another.
  ~Pickle() {
    for (const auto& one : containers_) one->clear();
  }
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  /// What it returns is there as long as the pickle.
  Value run() {
    while (true) {
      const auto operation = static_cast<char>(number(1));
      if (operation == '.') return pop();
      step(operation);
    }
  }

 private:
  std::uint64_t number(std::size_t size) {
    const std::uint64_t value = number_at(code_, at_, size);
    at_ += size;
    return value;
  }
  std::string text(std::uint64_t size) {
    const Bytes part = part_of(code_, at_, size);
    at_ += size;
    return text_of(part);
  }
  std::string line() {
    std::string all;
    for (char c = 0; (c = static_cast<char>(number(1))) != '\n';) all += c;
    return all;
  }

  Value container(Kind kind) {
    Value made = Value::of(kind);
    made.items = containers_.emplace_back(std::make_shared<Values>());
    return made;
  }
  void push(Value value) {
    count_copy(value);
    if (stack_.size() >= kMostOnStack) throw Corrupt("its pickle has too many values at a time");
    stack_.push_back(std::move(value));
  }
  void push_mark() {
    if (++marks_ > kMostMarks) throw Corrupt("its pickle has lists in lists without end");
    push(Value::of(Kind::kMark));
  }
  void count_copy(const Value& value) {
    copied_ += value.text.size();
    if (value.tensor != nullptr) {
      const Tensor& one = *value.tensor;
      copied_ += one.storage.type.size() + one.storage.key.size();
      copied_ += (one.sizes.size() + one.strides.size()) * sizeof(std::int64_t);
    }
    if (copied_ > kAlwaysCopied + kCopiedTimes * code_.size())
      throw Corrupt("its pickle copies names and shapes too often");
  }
  Value& top() {
    if (stack_.empty() || stack_.back().kind == Kind::kMark)
      throw Corrupt("its pickle takes what is not there");
    return stack_.back();
  }
  Value pop() {
    Value value = std::move(top());
    stack_.pop_back();
    return value;
  }
  Value pop_list(std::size_t count) {
    Value list = container(Kind::kList);
    for (std::size_t i = 0; i < count; ++i) list.items->push_back(pop());
    std::reverse(list.items->begin(), list.items->end());
    return list;
  }
  /// What is above the last mark, which goes, too.
  Values pop_marked() {
    const auto mark =
        std::find_if(stack_.rbegin(), stack_.rend(), [](const Value& v) { return v.kind == Kind::kMark; });
    if (mark == stack_.rend()) throw Corrupt("its pickle takes what is not there");
    Values values(std::make_move_iterator(mark.base()), std::make_move_iterator(stack_.end()));
    stack_.erase(std::prev(mark.base()), stack_.end());
    --marks_;
    return values;
  }

  /// To a list or a dict; of what is left out nothing is kept.
  void add(Value& to, Values values) {
    if (to.kind == Kind::kDict && values.size() % 2 == 1)
      throw Corrupt("its pickle has a key without a value");
    if (to.kind == Kind::kDict || to.kind == Kind::kList)
      std::move(values.begin(), values.end(), std::back_inserter(*to.items));
  }

  void memoize(std::uint64_t place) {
    if (place > code_.size()) throw Corrupt("its pickle keeps a value where it has none");
    if (memo_.size() <= place) memo_.resize(place + 1);
    memo_[place] = top();
    count_copy(memo_[place]);
  }
  void recall(std::uint64_t place) {
    if (place >= memo_.size()) throw Corrupt("its pickle takes what is not there");
    push(memo_[place]);
  }

  Value call(const Value& what, const Value& arguments) {
    const auto& of = arguments.items;
    if (what.kind != Kind::kGlobal || arguments.kind != Kind::kList) return {};
    if (what.text == "collections OrderedDict") return container(Kind::kDict);
    if (what.text == "torch._utils _rebuild_tensor" || what.text == "torch._utils _rebuild_tensor_v2") {
      check_bytes_are_values(arguments, 6);
      return tensor_of(arguments);
    }
    if (what.text == "torch._utils _rebuild_tensor_v3") {  // of a type that no storage is named after
      check_bytes_are_values(arguments, 7);
      Value made = tensor_of(arguments);
      made.tensor->storage.type = item(arguments, 6, Kind::kGlobal).text;
      return made;
    }
    if ((what.text == "torch._utils _rebuild_parameter" ||
         what.text == "torch._utils _rebuild_parameter_with_state" ||
         what.text == "torch.jit._pickle restore_type_tag") &&
        !of->empty())
      return of->front();
    const std::string of_type = "torch._tensor _rebuild_from_type_v2";
    if (what.text == of_type && of->size() > 2 && of->front().text != of_type)
      return call((*of)[0], (*of)[2]);
    return {};
  }
  /// Its metadata say that its values are other than its bytes: to be negated, or conjugated.
  static void check_bytes_are_values(const Value& arguments, std::size_t metadata) {
    if (arguments.items->size() <= metadata) return;
    const Value& said = (*arguments.items)[metadata];
    if (said.kind == Kind::kDict && !said.items->empty())
      throw Corrupt(
          "it has a tensor that is to be negated or conjugated, which is not read: save its "
          ".resolve_neg().resolve_conj()");
  }
  /// (storage, offset, sizes, strides, ...)
  static Value tensor_of(const Value& arguments) {
    Value made = Value::of(Kind::kTensor);
    const Value& storage = item(arguments, 0, Kind::kStorage);
    const std::int64_t offset = item(arguments, 1, Kind::kNumber).number;
    if (offset < 0) throw Corrupt("it makes a tensor before its storage");
    made.tensor = std::make_shared<Tensor>(Tensor{storage.tensor->storage, static_cast<std::uint64_t>(offset),
                                                  counts_of(item(arguments, 2, Kind::kList)),
                                                  counts_of(item(arguments, 3, Kind::kList))});
    if (made.tensor->sizes.size() != made.tensor->strides.size())
      throw Corrupt("it makes a tensor with other extents than strides");
    if (made.tensor->sizes.size() > kMostDimensions)
      throw Corrupt("it makes a tensor of more than " + std::to_string(kMostDimensions) + " dimensions");
    return made;
  }
  /// ("storage", type, key, ...)
  static Value storage_of(const Value& id) {
    Value made = Value::of(Kind::kStorage);
    made.tensor = std::make_shared<Tensor>();
    made.tensor->storage = {item(id, 1, Kind::kGlobal).text, item(id, 2, Kind::kText).text};
    return made;
  }

  void step(char operation) {
    switch (operation) {
      case '\x80':
        return void(number(1));  // PROTO
      case '\x95':
        return void(number(8));  // FRAME
      case '(':
        return push_mark();  // MARK
      case '0':
        return void(pop());  // POP
      case '1':
        return void(pop_marked());  // POP_MARK
      case '2':
        return push(top());  // DUP
      case 'N':
        return push({});  // NONE
      case '\x88':
        return push(Value::of(std::int64_t{1}));  // NEWTRUE
      case '\x89':
        return push(Value::of(std::int64_t{0}));  // NEWFALSE
      case 'K':
        return push(Value::of(static_cast<std::int64_t>(number(1))));  // BININT1
      case 'M':
        return push(Value::of(static_cast<std::int64_t>(number(2))));  // BININT2
      case 'J':
        return push(Value::of(std::int64_t{static_cast<std::int32_t>(number(4))}));  // BININT
      case '\x8a':
        return push_long();  // LONG1
      case 'G':
        return void((number(8), push({})));  // BINFLOAT
      case 'X':
        return push(Value::of(Kind::kText, text(number(4))));  // BINUNICODE
      case '\x8c':
        return push(Value::of(Kind::kText, text(number(1))));  // SHORT_BINUNICODE
      case '\x8d':
        return push(Value::of(Kind::kText, text(number(8))));  // BINUNICODE8
      case 'U':
      case 'C':
        return void((text(number(1)), push({})));  // SHORT_BINSTRING, SHORT_BINBYTES
      case 'T':
      case 'B':
        return void((text(number(4)), push({})));  // BINSTRING, BINBYTES
      case '}':
        return push(container(Kind::kDict));  // EMPTY_DICT
      case ']':
      case ')':
        return push(container(Kind::kList));  // EMPTY_LIST, EMPTY_TUPLE
      case 't':
        return push_marked_list();  // TUPLE
      case 'l':
        return push_marked_list();  // LIST
      case '\x85':
        return push(pop_list(1));  // TUPLE1
      case '\x86':
        return push(pop_list(2));  // TUPLE2
      case '\x87':
        return push(pop_list(3));  // TUPLE3
      case 's': {                  // SETITEM
        const Value pair = pop_list(2);
        return add(top(), *pair.items);
      }
      case 'a': {  // APPEND
        Value one = pop();
        return add(top(), {std::move(one)});
      }
      case 'u':
      case 'e': {  // SETITEMS, APPENDS
        Values all = pop_marked();
        return add(top(), std::move(all));
      }
      case 'q':
        return memoize(number(1));  // BINPUT
      case 'r':
        return memoize(number(4));  // LONG_BINPUT
      case '\x94':
        return memoize(memo_.size());  // MEMOIZE
      case 'h':
        return recall(number(1));  // BINGET
      case 'j':
        return recall(number(4));  // LONG_BINGET
      case 'c': {                  // GLOBAL
        const std::string module = line();
        return push(Value::of(Kind::kGlobal, module + " " + line()));
      }
      case '\x93': {  // STACK_GLOBAL
        const Value name = pop(), module = pop();
        return push(Value::of(Kind::kGlobal, module.text + " " + name.text));
      }
      case 'Q':
        return push(storage_of(pop()));  // BINPERSID
      case 'R':
      case '\x81': {  // REDUCE, NEWOBJ
        const Value arguments = pop(), what = pop();
        return push(call(what, arguments));
      }
      case 'b':
        return void(pop());  // BUILD: attributes, such as a state_dict's _metadata
      default:
        throw Corrupt("its pickle has an operation that torch.save does not write for a state_dict");
    }
  }
  void push_long() {
    const auto size = static_cast<std::size_t>(number(1));
    if (size > 8) throw Corrupt("its pickle has a number of more than 64 bits");
    std::uint64_t value = number(size);
    if (size > 0 && size < 8 && (value >> (8 * size - 1)) != 0) value |= ~std::uint64_t{0} << (8 * size);
    push(Value::of(static_cast<std::int64_t>(value)));
  }
  void push_marked_list() {
    Value list = container(Kind::kList);
    *list.items = pop_marked();
    push(std::move(list));
  }

  Bytes code_;
  std::uint64_t at_ = 0;
  std::size_t marks_ = 0;     ///< on the stack
  std::uint64_t copied_ = 0;  ///< bytes that values have outside of them
  Values stack_, memo_;
  std::vector<std::shared_ptr<Values>> containers_;
};

// The tensors.

std::optional<DType> type_of(const std::string& storage) {
  constexpr std::array<std::pair<std::string_view, DType>, 15> kTypes{
      {{"torch FloatStorage", DType::kF32},
       {"torch DoubleStorage", DType::kF64},
       {"torch HalfStorage", DType::kF16},
       {"torch BFloat16Storage", DType::kBF16},
       {"torch LongStorage", DType::kI64},
       {"torch IntStorage", DType::kI32},
       {"torch ShortStorage", DType::kI16},
       {"torch CharStorage", DType::kI8},
       {"torch ByteStorage", DType::kU8},
       {"torch BoolStorage", DType::kBool},
       {"torch uint16", DType::kU16},
       {"torch uint32", DType::kU32},
       {"torch uint64", DType::kU64},
       {"torch float8_e4m3fn", DType::kF8E4M3},
       {"torch float8_e5m2", DType::kF8E5M2}}};
  for (const auto& [name, type] : kTypes) {
    if (name == storage) return type;
  }
  return {};
}

/// Row-major, from `storage`; copied to `copies` where they do not lie so there. Takes its bytes off `left`.
Bytes elements_of(const Tensor& tensor, Bytes storage, std::size_t element, std::uint64_t& left,
                  std::vector<std::vector<std::byte>>& copies) {
  const std::uint64_t there = storage.size() / element;
  std::uint64_t count = 1, last = tensor.offset;
  bool row_major = true, overflows = false;
  for (std::size_t d = tensor.sizes.size(); d-- > 0;) {
    const auto size = static_cast<std::uint64_t>(tensor.sizes[d]);
    const auto stride = static_cast<std::uint64_t>(tensor.strides[d]);
    if (size == 0) return {};
    row_major = row_major && (size == 1 || stride == count);
    std::uint64_t span = 0;
    overflows = __builtin_mul_overflow(size - 1, stride, &span) ||
                __builtin_add_overflow(last, span, &last) || __builtin_mul_overflow(count, size, &count) ||
                overflows;
  }
  if (overflows || last >= there) throw Corrupt("it has a tensor that is not in its storage");
  if (count > left / element)  // one element may be any number of an expanded tensor's
    throw Corrupt("its tensors share storages so often that they take more than " +
                  std::to_string(kCopiedTimes) + " times the file");
  left -= count * element;
  if (row_major) return storage.subspan(tensor.offset * element, count * element);
  auto& copy = copies.emplace_back(count * element);
  std::vector<std::int64_t> index(tensor.sizes.size());
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t from = tensor.offset;
    for (std::size_t d = 0; d < index.size(); ++d)
      from += static_cast<std::uint64_t>(index[d] * tensor.strides[d]);
    std::memcpy(copy.data() + i * element, storage.data() + from * element, element);
    for (std::size_t d = index.size(); d-- > 0 && ++index[d] == tensor.sizes[d];) index[d] = 0;
  }
  return copy;
}

/// The dict of tensors, or the one that a training program's checkpoint has.
const Value& weights_in(const Value& saved) {
  if (saved.kind != Kind::kDict)
    throw Corrupt(
        "it is no dict: a whole module, say, of which torch.save(net.state_dict(), path) has the weights");
  for (std::size_t i = 0; i + 1 < saved.items->size(); i += 2) {
    const Value& key = (*saved.items)[i];
    const Value& value = (*saved.items)[i + 1];
    const bool is_named = key.text == "state_dict" || key.text == "model_state_dict" || key.text == "model";
    if (key.kind == Kind::kText && is_named && value.kind == Kind::kDict) return value;
  }
  return saved;
}

TorchSaved decode(Bytes file) {
  if (is_old_torch_save(file))
    throw Corrupt(
        "it is a pickle without an archive, as torch.save wrote before PyTorch 1.6 and writes with "
        "_use_new_zipfile_serialization=False: torch.save(torch.load(path), path) makes an archive of it");
  const auto members = members_of(file);
  const auto member = [&](const std::string& name) {
    const auto at = members.find(name);
    if (at == members.end()) throw Corrupt("it has no " + shown_name(name));
    return at->second;
  };
  if (const auto order = members.find("byteorder");
      order != members.end() && text_of(order->second) != "little")
    throw Corrupt("its numbers are not little-endian");
  Pickle pickle(member("data.pkl"));
  const Value saved = pickle.run();
  const Value& weights = weights_in(saved);
  TorchSaved read;
  std::uint64_t left = kAlwaysCopied + kCopiedTimes * file.size();
  for (std::size_t i = 0; i + 1 < weights.items->size(); i += 2) {
    const Value& key = (*weights.items)[i];
    const Value& value = (*weights.items)[i + 1];
    if (key.kind != Kind::kText || value.kind != Kind::kTensor) continue;
    const auto type = type_of(value.tensor->storage.type);
    if (!type)
      throw Corrupt("'" + key.text + "' has a " + value.tensor->storage.type + ", which is not read");
    const Bytes bytes = elements_of(*value.tensor, member("data/" + value.tensor->storage.key),
                                    dtype_bytes(*type), left, read.copies);
    read.tensors.push_back({key.text, *type, value.tensor->sizes, bytes});
  }
  if (read.tensors.empty()) throw Corrupt("it has no tensors by name");
  return read;
}

}  // namespace

bool is_torch_save(std::span<const std::byte> file) {
  return file.size() >= 4 && number_at(file, 0, 4) == kMember;
}

bool is_old_torch_save(std::span<const std::byte> file) {
  constexpr std::byte kProto{0x80}, kFirst{2}, kLast{5};
  return file.size() >= 8 && file[0] == kProto && file[1] >= kFirst && file[1] <= kLast &&
         number_at(file, 0, 8) > kMaxHeaderBytes;
}

Result<TorchSaved> read_torch_save(std::string_view name, std::span<const std::byte> file) {
  try {
    return decode(file);
  } catch (const Corrupt& error) {
    return ErrorInfo{ErrorCode::kCorrupt, "cannot read the weights '" + std::string(name) + "'",
                     shown_name(error.why, kLongestWhy),
                     "write them by torch.save(net.state_dict(), path), or as a safetensors file"};
  }
}

}  // namespace troupe::checkpoint
