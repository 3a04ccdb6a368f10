// A shared library that no node has, for a job that brings it along.
extern "C" int answer_of_the_library() {
  return 42;
}
