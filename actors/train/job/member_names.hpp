/// Whether a user's struct has a function of a name, whatever that takes and returns, so that one which
/// cannot be called as it must be is told instead of being passed over.
#pragma once

#include <type_traits>

/// TROUPE_NAMES(NamesLoss, loss): the concept NamesLoss<Job>, true of functions, overloads and templates
/// named `loss`. A field of that name is the struct's own business.
///
/// A class that inherits the name from the struct and from elsewhere cannot say which it means; one that is
/// final shows no overloads.
#define TROUPE_NAMES(Concept, member)                                       \
  struct Concept##Elsewhere {                                               \
    int member;                                                             \
  };                                                                        \
  template <class Job, bool is_final = std::is_final_v<Job>>                \
  struct Concept##Twice : Job, Concept##Elsewhere {};                       \
  template <class Job>                                                      \
  struct Concept##Twice<Job, true> {};                                      \
  template <class Job>                                                      \
  concept Concept##AsField = requires {                                     \
    requires !std::is_member_function_pointer_v<decltype(&Job::member)> &&  \
        !std::is_function_v<std::remove_pointer_t<decltype(&Job::member)>>; \
  };                                                                        \
  template <class Job>                                                      \
  concept Concept = (!Concept##AsField<Job>)&&(                             \
      std::is_final_v<Job> ? requires { &Job::member; } : !requires { &Concept##Twice<Job>::member; })
