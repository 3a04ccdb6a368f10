#include "runtime/config/configure.hpp"

#include <cstdio>
#include <cstdlib>

#include "runtime/config/settings.hpp"
#include "runtime/core/escape.hpp"

namespace troupe {

Configured read_configuration(const std::vector<std::string>& words, std::initializer_list<Fields> fields,
                              const std::string& program, const std::string& about) {
  config::Entries entries;
  for (const Fields& part : fields)
    entries.insert(entries.end(), part.entries().begin(), part.entries().end());
  const auto refuse = [](ErrorInfo info) {
    info.code = ErrorCode::kBadConfig;
    throw_error(std::move(info));
  };
  config::drop_unnamed_enums(entries);
  if (auto taken = config::name_taken(entries)) refuse(std::move(*taken));
  auto line = config::parse_flags(words, entries);
  if (!line) refuse(line.error());
  if (line->wants_help) return {config::help_text(program, about, entries)};
  for (const std::string& file : line->files) {
    const auto settings = config::read_toml(file);
    if (!settings) refuse(settings.error());
    if (auto wrong = config::apply_settings(*settings, entries)) refuse(std::move(*wrong));
  }
  if (auto wrong = config::apply_settings(line->settings, entries)) refuse(std::move(*wrong));
  return {};
}

void configure(int argc, char** argv, std::initializer_list<Fields> fields, const std::string& about) {
  std::string program = argc > 0 ? argv[0] : "program";
  program = program.substr(program.rfind('/') + 1);
  try {
    const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
    const Configured done = read_configuration(words, fields, program, about);
    if (done.help.empty()) return;
    std::fputs(done.help.c_str(), stdout);
    std::exit(std::fflush(stdout) == 0 ? 0 : 1);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), escape_text(error.what()).c_str());
    std::exit(2);
  }
}

}  // namespace troupe
