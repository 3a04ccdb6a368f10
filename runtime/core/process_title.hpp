/// What `ps` and `top` show of a process of ours, and what its node tells of it: "troupe: trainer 0 of Mnist
/// rank=0 step=812".
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// Names this process, as "troupe: trainer 0". Its arguments stay where they are: the kernel is told of other
/// memory, once, which needs no right, but a kernel with CONFIG_CHECKPOINT_RESTORE; without that nothing
/// happens. Call it first while no other thread allocates memory: the kernel is told of the heap's end, too.
/// Thread-safe otherwise, as all here.
void name_process(std::string_view name);
/// What it works for: "troupe: trainer 0 of Mnist". Words that were noted are dropped. Both do nothing in a
/// process that was not named: it is the user's program.
void name_process_work(std::string_view work);
/// Notes a word, or changes it: a store to memory, so that each step may be noted. A blank in it becomes '_'.
void note_process(std::string_view key, std::string_view value);

/// What a process says of itself in the text of its /proc/PID/cmdline; empty if it was not named so.
struct ProcessTitle {
  std::string title;  ///< without "troupe: "
  std::vector<std::pair<std::string, std::string>> notes;
};
ProcessTitle parse_process_title(std::string_view arguments);
/// That of a process of this machine.
ProcessTitle read_process_title(long pid);

}  // namespace troupe
