/// troupe::configure: structs filled from a TOML file and from the command line.
///
///     struct Digits { double lr = 0.1; std::string kind = "sgd"; ... };
///
///     int main(int argc, char** argv) {
///       Digits job;
///       troupe::train::TrainOptions options{.micro_batch = 25, .epochs = 3};
///       troupe::configure(argc, argv, {job, options});
///       auto session = troupe::init(argc, argv);
///       return troupe::train::run(session, job, options).exit_code();
///     }
///
///     $ digits --lr 0.01 --epochs 5 --config job.toml     # what a flag says goes before what the file says
///     $ cat job.toml
///     kind = "adam"
///     [options]
///     trainers = 2
///
/// Fields that are named, as a sweep names them, are those alone, and may have a line for --help:
///
///     troupe::configure(argc, argv, {{job, {{&Digits::lr, "Learning rate"}, &Digits::kind}}, options},
///                       "Trains a ConvNet on digits");
///
/// A struct's fields are those of runtime/config/kinds.hpp, and structs of them: `--schedule.warmup 100`.
/// TrainOptions are in the table `options`, InitOptions in `cluster`; a flag may leave the table out where
/// the short name is one field's alone.
#pragma once

#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/config/fields.hpp"

namespace troupe {

/// Fields of one struct that configure() fills. The struct must outlive it.
class Fields {
 public:
  /// All of `of`'s.
  template <class T>
  requires(!std::is_same_v<std::remove_const_t<T>, Fields>) Fields(T& of) {  // NOLINT: implicit on purpose
    if constexpr (requires(config::Entries & to, T & it) { config::Table<T>::add(to, "", it); }) {
      config::Table<T>::add(entries_, config::Table<T>::kTable, of);
    } else {
      config::add_fields(entries_, "", of);
    }
  }
  /// These of them.
  template <class T>
  Fields(T& of, std::type_identity_t<std::initializer_list<config::Described<T>>> named) {
    for (const auto& one : named) one.add(entries_, "", of);
  }

  const config::Entries& entries() const { return entries_; }

 private:
  config::Entries entries_;
};

/// What the words of a command line come to.
struct Configured {
  std::string help;  ///< to be printed, and nothing else done; empty: all is set
};

/// Fills them from the file of `--config FILE` and the flags among `words` (without the program's name).
/// Throws BadConfig: an unknown name (with the nearest one), a value that does not fit, a file that cannot be
/// read. Then some are set and others are not.
Configured read_configuration(const std::vector<std::string>& words, std::initializer_list<Fields> fields,
                              const std::string& program, const std::string& about = {});

/// The same of a program's arguments: prints help and exits with 0, or the error and exits with 2. What
/// troupe::init reads, `--address`, is left to it. Call it first, before init.
void configure(int argc, char** argv, std::initializer_list<Fields> fields, const std::string& about = {});

}  // namespace troupe
