// A program that needs it in a worker on another node.
#include <cstdio>
#include <troupe/session.hpp>

extern "C" int answer_of_the_library();

struct Reader {
  int read() { return answer_of_the_library(); }
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  const auto reader = session.spawn<Reader>({.labels = {{"place", "two"}}, .isolated = true});
  std::printf("the library says %d on node two\n", reader.call<&Reader::read>().get());
}
