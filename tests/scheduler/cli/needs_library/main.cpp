// A program that needs it.
#include <cstdio>

extern "C" int answer_of_the_library();

int main() {
  std::printf("the library says %d\n", answer_of_the_library());
  return 0;
}
