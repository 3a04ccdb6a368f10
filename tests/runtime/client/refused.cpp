// Programs that must not compile, and what the compiler's first error says. Each case is compiled alone, by
// refused.sh; case 0 is fine.
#include "runtime/client/session.hpp"

using namespace troupe;

namespace app {

struct Counter {
  int add(int n) { return n; }
  void both(int, double) {}
  void resize(std::size_t) {}
  void rate(float) {}
  void flag(bool) {}
  void maybe(std::optional<int>) {}
  void name(const std::string&) {}
  void change(int&) {}
  std::string_view view() { return ""; }
};
struct Stranger {
  int secret() { return 42; }
};
struct Sealed {
  Sealed() = default;
  explicit Sealed(int) {}
};
struct Letter {
  std::string text;
  Sealed seal;
};
struct Unmade {
  explicit Unmade(int n) : value(n) {}
  int value;
  auto troupe_fields() { return std::tie(value); }
};
struct Stamper {
  explicit Stamper(const Unmade&) {}
};
struct Address {
  std::string street;
};
struct Parcel : Address {
  int grams = 0;
};
struct Postman {
  void stamp(const Unmade&) {}
  explicit Postman(int) {}
  void carry(const Sealed&) {}
  void deliver(const Letter&) {}
  void point(int*) {}
  void bring(const Parcel&) {}
};

#if CASE == 22
struct Awaiting {
  Task<> wait() { co_await std::suspend_always(); }
};
#endif

ObjectRef<int> refer() {
  return {};
}

void use(const Session& session, const ActorHandle<Counter>& counter, const ActorHandle<Postman>& postman) {
  [[maybe_unused]] int n = 1;
  [[maybe_unused]] double real = 1;
  [[maybe_unused]] std::int64_t large = 1;
  (void)session, (void)counter, (void)postman;
#if CASE == 0
  counter.call<&Counter::add>(n);
  counter.call<&Counter::both>(n, n);
  counter.call<&Counter::resize>(5);
  counter.call<&Counter::rate>(0.1);
  session.spawn<Postman>({}, 1);
  session.submit<&refer>();
#elif CASE == 1  // expect: too few arguments: pass one for every parameter of the method
  counter.call<&Counter::both>(1);
#elif CASE == 2  // expect: too many arguments: pass one for every parameter of the method
  counter.call<&Counter::add>(1, 2);
#elif CASE == 3  // expect: an argument does not convert to its parameter without loss
  counter.call<&Counter::add>(real);
#elif CASE == 4  // expect: this_variable_could_lose_its_value_pass_the_type_of_the_parameter_or_use_static_cast
  counter.call<&Counter::add>(large);
#elif CASE == 5  // expect: this_variable_could_lose_its_value_pass_the_type_of_the_parameter_or_use_static_cast
  counter.call<&Counter::resize>(n);
#elif CASE == 6  // expect: this_constant_does_not_fit_its_parameter
  counter.call<&Counter::resize>(-1);
#elif CASE == 7  // expect: this_variable_could_lose_its_value_pass_the_type_of_the_parameter_or_use_static_cast
  counter.call<&Counter::rate>(real);
#elif CASE == 8  // expect: an argument does not convert to its parameter without loss
  counter.call<&Counter::flag>(n);
#elif CASE == 9  // expect: an argument does not convert to its parameter without loss
  counter.call<&Counter::maybe>(real);
#elif CASE == 10  // expect: an argument does not convert to its parameter without loss
  counter.call<&Counter::name>(3);
#elif CASE == 11  // expect: the method belongs to another class than the actor
  counter.call<&Stranger::secret>();
#elif CASE == 12  // expect: take it by value or const reference, and return what changed
  counter.call<&Counter::change>(n);
#elif CASE == 13  // expect: This_type_cannot_be_sent_Give_it_troupe_fields_or_a_wire_Codec<app::Sealed>
  postman.call<&Postman::carry>(Sealed());
#elif CASE == 14  // expect: This_field_cannot_be_sent_Give_its_type_troupe_fields_or_a_wire_Codec<app::Sealed, app::Letter>
  postman.call<&Postman::deliver>(Letter());
#elif CASE == 15  // expect: A_pointer_means_nothing_in_another_process_Send_the_value<int*>
  postman.call<&Postman::point>(&n);
#elif CASE == 16  // expect: no constructor of T takes these arguments
  session.spawn<Postman>({}, "text", 2);
#elif CASE == 17  // expect: A_view_owns_nothing_Receive_a_std_string_or_std_vector<std::basic_string_view<char> >
  counter.call<&Counter::view>().get();
#elif CASE == 18  // expect: too few arguments: pass one for every parameter of the method
  counter.tell<&Counter::add>();
#elif CASE == 20  // expect: the type of a parameter has no default constructor, which its arrival needs: give it one
  postman.call<&Postman::stamp>(Unmade(1));
#elif CASE == 21  // expect: the type of an argument has no default constructor, which its arrival needs: give it one
  session.spawn<Stamper>({}, Unmade(1));
#elif CASE == 22  // expect: co_await in a troupe::Task: give it a Future
  Awaiting().wait();
#elif CASE == 23  // expect: an aggregate that crosses processes has no base class: make it a field
  postman.call<&Postman::bring>(Parcel());
#elif CASE == 24  // expect: compute<&function>: it returns a reference already: submit it
  session.compute<&refer>();
#elif CASE == 19  // expect: too many arguments: pass one for every parameter of the method
  counter.call<&Counter::add>(1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
#endif
}

}  // namespace app
